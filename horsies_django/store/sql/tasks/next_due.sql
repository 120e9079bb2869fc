-- When the next task of some queues becomes due that waits, after one moment and not after another, in microseconds since 1970; NULL:
-- none does. For drain(until=...), which moves from one such moment to the next.
-- Locks: none. Index: horsies_tasks_claim, horsies_tasks_parked; all that waits is read, which is little in a test.
SELECT (extract(epoch FROM min(task.enqueued_at)) * 1000000)::bigint FROM horsies_tasks task
WHERE task.queue_name = ANY (%(queues)s::text[]) AND task.claimed_by IS NULL AND task.finished_at IS NULL
  AND task.enqueued_at > %(after)s::timestamptz AND task.enqueued_at <= %(until)s::timestamptz
