-- Declares workers dead and rescues their tasks; see functions/recover/horsies_reap.sql.
-- Moves: RUNNING -> PENDING, FAILED; CLAIMED -> PENDING; PENDING -> EXPIRED.
-- Locks: an advisory lock, without waiting; task rows, skipping locked ones. Index: horsies_tasks_holding, horsies_tasks_deadline.
SELECT r.kind, r.id, r.task_name, r.attempt, r.queue_name, r.options
FROM horsies_reap(%(threshold)s::interval, %(judge)s::boolean, %(many)s::int, %(max_crashes)s::int, %(channel)s::text) AS r
