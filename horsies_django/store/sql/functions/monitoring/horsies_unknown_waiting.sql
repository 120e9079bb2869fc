-- Counts by queue and name the tasks that have been due for longer than p_grace and that no living
-- worker of their queue can run. Queues that no living worker serves are left out.
-- Args:
--   p_threshold: see horsies_living_workers.
--   p_many: the number of tasks to look at, the first of each lane and priority of a queue, and the
--     largest number of rows to return. Tasks that workers leave out stay at the front.
-- Returns: the counts, with the time since when the first task has been due.
-- Index: horsies_tasks_claim, in its order; workers have a few rows.
CREATE OR REPLACE FUNCTION horsies_unknown_waiting(
  p_names text[], p_grace interval, p_threshold interval, p_many int
) RETURNS TABLE (
  queue_name text, task_name text, many int, since timestamptz
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_due timestamptz := clock_timestamp() - p_grace;  -- a volatile call cannot be an index condition
BEGIN
  RETURN QUERY
  WITH living AS MATERIALIZED (
    SELECT worker
    FROM horsies_workers worker
    WHERE worker.id IN (SELECT horsies_living_workers('*', p_threshold))
  ),
  step AS (
    SELECT queue.name, lane_priority.lane, lane_priority.priority
    FROM unnest(p_names) AS queue (name)
    CROSS JOIN LATERAL horsies_priorities(queue.name) AS lane_priority
    WHERE EXISTS (SELECT FROM living WHERE (living.worker).queues ? queue.name)
  ),
  waiting AS (
    SELECT
      step.name,
      due.task_name,
      jsonb_build_object('wire', due.wire) AS options,
      count(*)::int AS many,
      min(due.enqueued_at) AS since
    FROM step
    CROSS JOIN LATERAL (
      SELECT task.task_name, task.options -> 'wire' AS wire, task.enqueued_at
      FROM horsies_tasks task
      WHERE task.queue_name = step.name
        AND task.lane = step.lane
        AND task.priority = step.priority
        AND task.enqueued_at < v_due
        AND task.claimed_by IS NULL
        AND task.finished_at IS NULL
        AND NOT task.parked
      ORDER BY task.enqueued_at, task.id
      LIMIT p_many
    ) AS due
    GROUP BY step.name, due.task_name, due.wire
  )
  SELECT waiting.name, waiting.task_name::text, waiting.many, waiting.since
  FROM waiting
  WHERE NOT EXISTS (
    SELECT FROM living
    WHERE (living.worker).queues ? waiting.name
      AND horsies_worker_knows(waiting.task_name, waiting.options, living.worker)
  )
  ORDER BY waiting.since
  LIMIT p_many;
END
$$;
