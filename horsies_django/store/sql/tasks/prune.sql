-- Deletes a batch of finished tasks that are older than their retention; see functions/tasks/horsies_prune.sql.
-- Locks: an advisory lock, without waiting; task rows, skipping locked ones. Index: horsies_tasks_finished, primary keys.
SELECT p.tasks, p.attempts, p.more
FROM horsies_prune(%(key)s::text, %(queues)s::text[], %(others)s::boolean, %(age)s::interval, %(keep)s::jsonb,
                   %(many)s::int) AS p
