-- Reads the status of tasks that callers wait for and, once final, the results.
-- Locks: none. Index: primary key.
SELECT task.id, task.status, task.result::text FROM horsies_tasks task WHERE task.id = ANY (%(ids)s::uuid[])
