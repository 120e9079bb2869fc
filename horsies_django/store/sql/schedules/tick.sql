-- Record the task of each fire time; return those of fire times that had not been recorded before. With "skip", a fire time is recorded
-- without a task while the last one that was sent has not finished, and that one is returned, too: the fire time before names it, as its
-- own task or as the one it was skipped for. It has to be in the table, so with "skip" there is one fire time in a call.
-- A task that has not started before its good_until will not run: it counts as finished, unless
-- another session holds its row, as a pass does that claims it.
-- Locks: the new rows, and the row of a task that is late, skipping a locked one.
WITH due AS MATERIALIZED (
  SELECT t.fire_at, t.task_id, CASE WHEN %(skip)s::boolean THEN (
    SELECT k.id FROM horsies_tasks k
    WHERE k.finished_at IS NULL AND k.id = (
      SELECT coalesce(e.task_id, e.skipped_for) FROM horsies_schedule_ticks e
      WHERE e.schedule_name = %(name)s::text AND e.fire_at < t.fire_at ORDER BY e.fire_at DESC LIMIT 1)
      AND NOT EXISTS (
        SELECT FROM horsies_tasks late
        WHERE late.id = k.id AND late.status IN ('PENDING', 'CLAIMED')
          AND late.good_until <= coalesce(%(now)s::timestamptz, clock_timestamp())
        FOR NO KEY UPDATE SKIP LOCKED)
  ) END AS unfinished
  FROM unnest(%(fire_times)s::timestamptz[], %(task_ids)s::uuid[]) AS t (fire_at, task_id)
)
INSERT INTO horsies_schedule_ticks (schedule_name, fire_at, task_id, skipped_for)
SELECT %(name)s::text, d.fire_at, CASE WHEN d.unfinished IS NULL THEN d.task_id END, d.unfinished FROM due d
ON CONFLICT DO NOTHING RETURNING task_id, skipped_for
