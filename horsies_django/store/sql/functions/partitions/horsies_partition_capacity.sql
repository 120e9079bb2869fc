-- Returns the partitions of candidates and their rooms: parts (the index of each candidate's partition, 0 for none), rooms (on this worker)
-- and everyone (on all workers: the partition's cap, and its limit per worker times the number of living workers).
-- It asks queue by queue: the temporary tables of one statement for all take half a megabyte, which some sessions get anew for each pass.
-- Locks: none; exact only under the queues' advisory locks. Index: horsies_tasks_holding.
CREATE FUNCTION horsies_partition_capacity(p_limits horsies_limits[], p_queues int[], p_keys text[], p_worker uuid, p_claimed boolean,
                              p_now timestamptz, OUT parts int[], OUT rooms int[], OUT everyone int[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_queue int;
  v_limits horsies_limits;
  v_workers int;
  v_before int;
  v_keys text[];
BEGIN
  parts := array_fill(0, ARRAY[cardinality(p_queues)]);
  rooms := '{}';
  everyone := '{}';
  FOREACH v_queue IN ARRAY ARRAY(SELECT DISTINCT q.queue FROM unnest(p_queues) AS q (queue)) LOOP
    v_limits := p_limits[v_queue];
    CONTINUE WHEN v_limits.partition_max_concurrency IS NULL AND v_limits.partition_local_limit IS NULL;
    v_workers := CASE WHEN v_limits.partition_local_limit IS NOT NULL THEN (SELECT greatest(count(*), 1)::int FROM horsies_workers_serving(v_limits.queue_name)) END;
    v_before := cardinality(rooms);
    v_keys := ARRAY(SELECT DISTINCT k.key FROM unnest(p_queues, p_keys) AS k (queue, key) WHERE k.queue = v_queue AND k.key IS NOT NULL);
    SELECT array_agg(l.key),
           rooms || array_agg(least(v_limits.partition_max_concurrency - l.held, v_limits.partition_local_limit - l.here) - l.ahead),
           everyone || array_agg(least(v_limits.partition_max_concurrency, v_limits.partition_local_limit * v_workers) - l.held)
    INTO v_keys, rooms, everyone
    FROM horsies_partition_usage(v_limits, v_keys, p_worker, p_claimed, p_now) AS l;
    FOR i IN 1 .. cardinality(p_queues) LOOP
      IF p_queues[i] = v_queue THEN
        parts[i] := coalesce(v_before + array_position(v_keys, p_keys[i]), 0);
      END IF;
    END LOOP;
  END LOOP;
END
$$;
