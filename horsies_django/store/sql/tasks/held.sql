-- Lists the tasks that a worker holds according to the database, for the engine to compare.
-- Returns: for each task also its claim generation, whether it is running, whether its cancellation
-- was requested, and whether its process may be killed because of that.
-- Index: horsies_tasks_holding, which is read whole.
SELECT
  task.id,
  task.claim_generation,
  task.status = 'RUNNING',
  task.cancel_requested_at IS NOT NULL,
  task.terminate
FROM horsies_tasks task
WHERE task.claimed_by = %(worker)s::uuid AND task.finished_at IS NULL
