-- Deletes one batch of finished runs with all that belongs to them; see functions/workflows/horsies_prune_runs.sql.
-- Locks: an advisory lock, without waiting; rows of runs, skipping locked ones. Index: horsies_workflows_finished.
SELECT p.runs, p.tasks, p.attempts, p.more FROM horsies_prune_runs(%(age)s::interval, %(many)s::int) AS p
