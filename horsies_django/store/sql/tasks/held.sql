-- Lists the tasks that a worker holds according to the database, and which of them were cancelled, for the engine to compare.
-- Index: horsies_tasks_holding, which is read whole.
SELECT task.id, task.claim_generation, task.status = 'RUNNING', task.cancel_requested_at IS NOT NULL, task.terminate FROM horsies_tasks task
WHERE task.claimed_by = %(worker)s::uuid AND task.finished_at IS NULL
