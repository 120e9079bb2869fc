-- Reads the state of queues: limits declared, overridden and in force, tasks in flight, partitions
-- at their limit, and living workers.
-- The limits in force are computed from horsies_queues, because reading horsies_limits would delay
-- a change of limits. The row of the cluster comes first. Without "names", it is left out if it has
-- neither a limit nor an override.
-- Args: names: of the queues, NULL: all; claimed: whether claims hold permits of partitions;
-- threshold: see horsies_living_workers.
-- Index: see functions/monitoring/horsies_permits_in_use.sql.
WITH moment AS MATERIALIZED (
  SELECT clock_timestamp() AS now
)
SELECT
  queue.name,
  to_jsonb(queue)::text,
  queue.override::text,
  queue.override_by,
  queue.override_reason,
  queue.override_at,
  queue.override_until,
  queue.paused_at,
  queue.paused_by,
  queue.paused_reason,
  to_jsonb(effective)::text,
  coalesce(held.running, 0),
  coalesce(held.permits - held.running, 0),
  coalesce(crowded.partitions, 0),
  (SELECT count(*)::int FROM horsies_living_workers(queue.name, %(threshold)s::interval))
FROM horsies_queues queue
CROSS JOIN moment
CROSS JOIN LATERAL horsies_effective_limits(queue) AS effective
LEFT JOIN horsies_permits_in_use((SELECT moment.now FROM moment)) AS held
  ON held.name = queue.name
LEFT JOIN LATERAL (
  SELECT count(*) AS partitions
  FROM horsies_partition_rooms(
    effective, NULL, NULL, %(claimed)s::boolean, moment.now
  ) AS r
  WHERE r.everyone <= 0
) AS crowded
  ON effective.partition_max_concurrency IS NOT NULL
  OR effective.partition_local_limit IS NOT NULL
WHERE CASE
  WHEN %(names)s::text[] IS NOT NULL THEN queue.name = ANY (%(names)s::text[])
  ELSE
    queue.name <> '*'
    OR coalesce(queue.max_concurrency, effective.max_concurrency) IS NOT NULL
    OR queue.override IS NOT NULL
END
ORDER BY queue.name <> '*', effective.priority, queue.name
