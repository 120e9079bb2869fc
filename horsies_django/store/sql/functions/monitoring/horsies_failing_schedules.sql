-- Returns the schedules whose last two tasks that finished have failed or expired. It looks at the
-- last ten tasks of the last p_recent fire times.
-- Returns: up to p_many schedules, with the name of a task and the time at which the first of the
-- two ended, in the order of this time.
-- Index: the primary keys of horsies_schedule_ticks and horsies_tasks; the table of schedules is
-- small.
CREATE OR REPLACE FUNCTION horsies_failing_schedules(p_recent int, p_many int)
RETURNS TABLE (name text, task text, since timestamptz) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN QUERY
  SELECT s.name::text, last.task_name, last.since
  FROM horsies_schedules s
  CROSS JOIN LATERAL (
    SELECT
      min(finished.task_name) AS task_name,
      min(finished.finished_at) AS since,
      count(*) FILTER (WHERE finished.failed) AS failed
    FROM (
      SELECT task.task_name, task.finished_at, task.status IN ('FAILED', 'EXPIRED') AS failed
      FROM (
        SELECT recent.task_id, recent.fire_at
        FROM (
          SELECT tick.task_id, tick.fire_at
          FROM horsies_schedule_ticks tick
          WHERE tick.schedule_name = s.name
          ORDER BY tick.fire_at DESC
          LIMIT p_recent
        ) AS recent
        WHERE recent.task_id IS NOT NULL
        LIMIT 10
      ) AS sent
      -- OFFSET 0: else a plan may read all tasks, or all that finished, to join them
      CROSS JOIN LATERAL (
        SELECT t.task_name, t.finished_at, t.status
        FROM horsies_tasks t
        WHERE t.id = sent.task_id
        OFFSET 0
      ) AS task
      WHERE task.finished_at IS NOT NULL
      ORDER BY sent.fire_at DESC
      LIMIT 2
    ) AS finished
  ) AS last
  WHERE s.gone_at IS NULL AND last.failed = 2
  ORDER BY last.since
  LIMIT p_many;
END
$$;
