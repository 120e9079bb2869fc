-- Makes a task that waits for its next attempt due now, and wakes the workers: the trigger only announces new rows.
-- Locks: the task row; waits for a pass that holds it. Index: primary key.
WITH hastened AS (
  UPDATE horsies_tasks task SET enqueued_at = clock_timestamp(), next_retry_at = clock_timestamp()
  WHERE task.id = %(id)s::uuid AND task.status = 'PENDING' AND task.next_retry_at > clock_timestamp()
  RETURNING task.queue_name, task.enqueued_at
)
SELECT pg_notify(%(channel)s::text || '_new', extract(epoch FROM hastened.enqueued_at) || ' ' || hastened.queue_name) FROM hastened
