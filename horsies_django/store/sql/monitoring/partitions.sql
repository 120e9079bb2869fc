-- Lists the partitions of a queue that hold permits, those with the most tasks first.
-- A task is parked only behind others of its partition that hold permits, or behind a failed one
-- that stops its order; see keys.sql.
-- Args: claimed: whether claims hold permits; bound: parked tasks are counted up to one more than
-- this.
-- Returns: for each partition the permits that it holds, its limit on all workers together, and how
-- many of its tasks are parked.
-- Index: horsies_tasks_holding, horsies_tasks_parked.
SELECT load.key, load.held, load.held + load.everyone, parked.many
FROM horsies_queues queue
CROSS JOIN (SELECT clock_timestamp() AS now OFFSET 0) AS moment
CROSS JOIN LATERAL horsies_effective_limits(queue) AS effective
CROSS JOIN LATERAL horsies_partition_rooms(
  effective, NULL, NULL, %(claimed)s::boolean, moment.now
) AS load
CROSS JOIN LATERAL (
  SELECT count(*) AS many
  FROM (
    SELECT
    FROM horsies_tasks t
    WHERE t.queue_name = queue.name
      AND t.partition_key = load.key
      AND t.claimed_by IS NULL
      AND t.finished_at IS NULL
      AND t.parked
    ORDER BY t.lane, t.priority, t.enqueued_at, t.id
    LIMIT %(bound)s::int + 1
  ) AS bounded
) AS parked
WHERE queue.name = %(queue)s::text AND load.held > 0
ORDER BY load.held + parked.many DESC, load.key
LIMIT %(many)s::int
