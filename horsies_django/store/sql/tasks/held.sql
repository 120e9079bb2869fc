-- List what the database says this worker holds, so that the engine can compare it with its memory, and what of it is to end.
-- Locks: none. Index: horsies_tasks_holding, all of which it reads.
SELECT task.id, task.claim_generation, task.cancel_requested_at IS NOT NULL, task.terminate FROM horsies_tasks task
WHERE task.claimed_by = %(worker)s::uuid AND task.finished_at IS NULL
