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
  SELECT previous.number + 1, next_head.partition_key, next_head.id
  FROM first_of previous
  CROSS JOIN LATERAL (
    SELECT later.partition_key, later.id
    FROM horsies_tasks later
    WHERE later.queue_name = %(queue)s::text
      AND later.partition_key > previous.key
      AND later.ordered
      AND (later.finished_at IS NULL OR later.order_stop IS NOT NULL)
    ORDER BY later.partition_key, least(later.claim_generation, 1) DESC, later.sent_at, later.id
    LIMIT 1
  ) AS next_head
  WHERE previous.number < %(many)s::int
), head AS MATERIALIZED (
  SELECT first_task.id, first_task.number::bigint
  FROM first_of first_task
  WHERE first_task.number > 0
  UNION ALL
  SELECT stopped.id, row_number() OVER (ORDER BY stopped.finished_at, stopped.id)
  FROM (
    SELECT failed.id, failed.finished_at
    FROM horsies_tasks failed
    WHERE %(stopped)s::boolean
      AND failed.queue_name = %(queue)s::text
      AND failed.order_stop = 'stop'
      AND failed.id = (
        SELECT member.id
        FROM horsies_tasks member
        WHERE member.queue_name = failed.queue_name
          AND member.partition_key = failed.partition_key
          AND member.ordered
          AND (member.finished_at IS NULL OR member.order_stop IS NOT NULL)
        ORDER BY least(member.claim_generation, 1) DESC, member.sent_at, member.id
        LIMIT 1
      )
    ORDER BY failed.finished_at, failed.id
    LIMIT %(many)s::int
  ) AS stopped
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
    FROM horsies_tasks follower
    WHERE follower.queue_name = task.queue_name
      AND follower.partition_key = task.partition_key
      AND follower.ordered
      AND (follower.finished_at IS NULL OR follower.order_stop IS NOT NULL)
    ORDER BY least(follower.claim_generation, 1) DESC, follower.sent_at, follower.id
    OFFSET 1
    LIMIT %(bound)s::int + 1
  ) AS bounded
) AS behind
ORDER BY head.number
