-- Reads a task of django.tasks and its attempts in one snapshot, without those that were snoozed.
-- If the task was merged into an equal task, it reads that one.
-- Returns: a row for each attempt, or one row without any; no row for other tasks. now: the clock
-- of the database, for a task that has ended but is not settled yet.
SELECT
  task.task_name, task.queue_name, task.priority, task.kwargs::text, task.options::text,
  task.status,
  task.sent_at, horsies_known_time(task.enqueued_at),
  horsies_known_time(task.started_at), horsies_known_time(task.finished_at),
  task.claimed_by, task.result::text, task.error_code,
  clock_timestamp() AS now,
  attempt.outcome, horsies_known_time(attempt.started_at), attempt.worker_id,
  attempt.error_code, attempt.error_message, attempt.exception_class, attempt.traceback
FROM horsies_tasks task
LEFT JOIN horsies_task_attempts attempt
  ON attempt.task_id = task.id AND attempt.outcome <> 'SNOOZED'
WHERE task.codec = 'plain'
  AND task.id = coalesce(
    (
      WITH RECURSIVE merged AS (
        SELECT %(id)s::uuid AS id
        UNION  -- a circle, which only others can write, ends
        SELECT one.merged_into
        FROM merged
        JOIN horsies_tasks one ON one.id = merged.id
      )
      SELECT merged.id
      FROM merged
      JOIN horsies_tasks one ON one.id = merged.id
      WHERE one.merged_into IS NULL
    ),
    %(id)s::uuid
  )
ORDER BY attempt.attempt, attempt.claim_generation
