-- Records the task of each fire time of a schedule.
-- With "skip", a fire time is recorded without a task while the last task that was sent has not
-- finished. The fire time before it names that task, as its own or as the one for which it was
-- skipped. It has to be in the table, so with "skip" a call has one fire time.
-- A task that has not started before its good_until will not run. It counts as finished, unless
-- another session holds its row, for example a pass that claims it.
-- Returns: the tasks of the fire times that had not been recorded before; for a skipped fire time,
-- the task that has not finished.
-- Locks: the new rows, and the row of a task that is late, skipping a locked one.
WITH due AS MATERIALIZED (
  SELECT
    fire_time.fire_at,
    fire_time.task_id,
    CASE WHEN %(skip)s::boolean THEN (
      SELECT last_task.id
      FROM horsies_tasks last_task
      WHERE last_task.finished_at IS NULL
        AND last_task.id = (
          SELECT coalesce(earlier_tick.task_id, earlier_tick.skipped_for)
          FROM horsies_schedule_ticks earlier_tick
          WHERE earlier_tick.schedule_name = %(name)s::text
            AND earlier_tick.fire_at < fire_time.fire_at
          ORDER BY earlier_tick.fire_at DESC
          LIMIT 1
        )
        AND NOT EXISTS (
          SELECT
          FROM horsies_tasks late
          WHERE late.id = last_task.id
            AND late.status IN ('PENDING', 'CLAIMED')
            AND late.good_until <= coalesce(%(now)s::timestamptz, clock_timestamp())
          FOR NO KEY UPDATE SKIP LOCKED
        )
    ) END AS unfinished
  FROM unnest(%(fire_times)s::timestamptz[], %(task_ids)s::uuid[]) AS fire_time (fire_at, task_id)
)
INSERT INTO horsies_schedule_ticks (schedule_name, fire_at, task_id, skipped_for)
SELECT
  %(name)s::text,
  tick.fire_at,
  CASE WHEN tick.unfinished IS NULL THEN tick.task_id END,
  tick.unfinished
FROM due tick
ON CONFLICT DO NOTHING
RETURNING task_id, skipped_for
