-- Reads the status of tasks and runs that callers wait for and, once final, the results.
-- Locks: none. Index: primary keys.
SELECT task.id, task.status, task.result::text FROM horsies_tasks task WHERE task.id = ANY (%(ids)s::uuid[])
UNION ALL
SELECT run.id, run.status, run.result::text FROM horsies_workflows run WHERE run.id = ANY (%(ids)s::uuid[])
