-- Lists partitions of a queue with a policy: with "stopped" those that a failed task stops, the one
-- that was stopped first at the beginning; else all that have tasks, by key, each found by a probe.
-- Args: bound: the tasks behind the first one are counted up to one more than this.
-- Returns: each partition with the task that comes first in it, since when that has its status, and
-- how many tasks are behind it.
-- Index: horsies_tasks_stopped, horsies_tasks_order.
WITH RECURSIVE first_of (number, key, id) AS (
  SELECT 0, '', NULL::uuid
  WHERE NOT %(stopped)s::boolean
  UNION ALL
  SELECT f.number + 1, n.partition_key, n.id
  FROM first_of f
  CROSS JOIN LATERAL (
    SELECT t.partition_key, t.id
    FROM horsies_tasks t
    WHERE t.queue_name = %(queue)s::text
      AND t.partition_key > f.key
      AND t.ordered
      AND (t.finished_at IS NULL OR t.order_stop IS NOT NULL)
    ORDER BY t.partition_key, least(t.claim_generation, 1) DESC, t.sent_at, t.id
    LIMIT 1
  ) AS n
  WHERE f.number < %(many)s::int
), head AS MATERIALIZED (
  SELECT f.id, f.number::bigint
  FROM first_of f
  WHERE f.number > 0
  UNION ALL
  SELECT s.id, row_number() OVER (ORDER BY s.finished_at, s.id)
  FROM (
    SELECT t.id, t.finished_at
    FROM horsies_tasks t
    WHERE %(stopped)s::boolean
      AND t.queue_name = %(queue)s::text
      AND t.order_stop = 'stop'
      AND t.id = (
        SELECT h.id
        FROM horsies_tasks h
        WHERE h.queue_name = t.queue_name
          AND h.partition_key = t.partition_key
          AND h.ordered
          AND (h.finished_at IS NULL OR h.order_stop IS NOT NULL)
        ORDER BY least(h.claim_generation, 1) DESC, h.sent_at, h.id
        LIMIT 1
      )
    ORDER BY t.finished_at, t.id
    LIMIT %(many)s::int
  ) AS s
)
SELECT
  task.partition_key,
  task.id,
  task.task_name,
  task.status,
  horsies_known_time(coalesce(task.finished_at, task.started_at, task.sent_at)),
  behind.many
FROM head
JOIN horsies_tasks task ON task.id = head.id
CROSS JOIN LATERAL (
  SELECT count(*) AS many
  FROM (
    SELECT
    FROM horsies_tasks t
    WHERE t.queue_name = task.queue_name
      AND t.partition_key = task.partition_key
      AND t.ordered
      AND (t.finished_at IS NULL OR t.order_stop IS NOT NULL)
    ORDER BY least(t.claim_generation, 1) DESC, t.sent_at, t.id
    OFFSET 1
    LIMIT %(bound)s::int + 1
  ) AS bounded
) AS behind
ORDER BY head.number
