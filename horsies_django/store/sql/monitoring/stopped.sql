-- Counts, for each queue in which failed tasks stop partitions, the stopped partitions.
-- Args: bound: at most one more than this number of failed tasks is read in each queue.
-- Returns: also for how many seconds the first partition has been stopped.
-- Index: horsies_tasks_stopped.
SELECT asked.name, found.many, extract(epoch FROM clock_timestamp() - found.since)::float8
FROM unnest(%(names)s::text[]) AS asked (name)
CROSS JOIN LATERAL (
  SELECT
    count(DISTINCT bounded.partition_key) AS many,
    horsies_known_time(min(bounded.finished_at)) AS since
  FROM (
    SELECT t.partition_key, t.finished_at
    FROM horsies_tasks t
    WHERE t.queue_name = asked.name AND t.order_stop = 'stop'
    ORDER BY t.finished_at
    LIMIT %(bound)s::int + 1
  ) AS bounded
) AS found
WHERE found.many > 0
