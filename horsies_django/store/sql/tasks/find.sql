-- Look at tasks somebody waits for: status and, once final, the result.
-- Locks: none. Index: primary key.
SELECT task.id, task.status, task.result::text FROM horsies_tasks task WHERE task.id = ANY (%(ids)s::uuid[])
