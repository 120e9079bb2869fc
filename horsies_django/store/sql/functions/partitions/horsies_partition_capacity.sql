-- Returns the partitions of candidates and their rooms: parts (the index of each candidate's partition, 0 for none), rooms (on this worker)
-- and everyone (on all workers: the partition's cap, and its limit per worker times the number of living workers).
-- Locks: none; exact only under the queues' advisory locks. Index: horsies_tasks_holding.
CREATE FUNCTION horsies_partition_capacity(p_limits horsies_limits[], p_queues int[], p_keys text[], p_worker uuid, p_claimed boolean,
                              p_now timestamptz, OUT parts int[], OUT rooms int[], OUT everyone int[])
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  WITH asked AS MATERIALIZED (
    SELECT a.queue, a.key, a.place FROM unnest(p_queues, p_keys) WITH ORDINALITY AS a (queue, key, place)
  ), part AS MATERIALIZED (
    SELECT d.queue, d.key, row_number() OVER () AS number,
           (p_limits[d.queue]).partition_max_concurrency AS cap, (p_limits[d.queue]).partition_local_limit AS local_limit
    FROM (SELECT DISTINCT asked.queue, asked.key FROM asked WHERE asked.key IS NOT NULL) AS d
  ), loads AS MATERIALIZED (
    SELECT q.queue, l.key, l.held, l.here, l.ahead
    FROM (SELECT part.queue, array_agg(part.key) AS keys FROM part
          WHERE part.cap IS NOT NULL OR part.local_limit IS NOT NULL GROUP BY part.queue) AS q
    CROSS JOIN LATERAL horsies_partition_usage(p_limits[q.queue], q.keys, p_worker, p_claimed, p_now) AS l
  ), serving AS MATERIALIZED (
    SELECT q.queue, horsies_count_workers_serving((p_limits[q.queue]).queue_name) AS workers
    FROM (SELECT DISTINCT part.queue FROM part WHERE part.local_limit IS NOT NULL) AS q
  ), room AS MATERIALIZED (
    SELECT part.queue, part.key, part.number,
           least(part.cap - coalesce(loads.held, 0), part.local_limit - coalesce(loads.here, 0)) - coalesce(loads.ahead, 0) AS here,
           least(part.cap, part.local_limit * greatest(serving.workers, 1)) - coalesce(loads.held, 0) AS everyone
    FROM part LEFT JOIN loads ON loads.queue = part.queue AND loads.key = part.key LEFT JOIN serving ON serving.queue = part.queue
  )
  SELECT (SELECT array_agg(coalesce(room.number, 0)::int ORDER BY asked.place)
          FROM asked LEFT JOIN room ON room.queue = asked.queue AND room.key = asked.key),
         (SELECT array_agg(room.here ORDER BY room.number) FROM room),
         (SELECT array_agg(room.everyone ORDER BY room.number) FROM room)
  INTO parts, rooms, everyone;
END
$$;
