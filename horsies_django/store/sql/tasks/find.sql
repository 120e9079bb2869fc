-- Reads the status of tasks and runs that callers wait for and, once final, the results. One that was merged into an equal task has those of
-- that one.
-- Locks: none. Index: primary keys.
WITH RECURSIVE seen AS (
  SELECT task.id, task.status, task.result, task.merged_into FROM horsies_tasks task WHERE task.id = ANY (%(ids)s::uuid[])
  UNION ALL
  SELECT seen.id, task.status, task.result, task.merged_into FROM seen JOIN horsies_tasks task ON task.id = seen.merged_into
)
SELECT seen.id, seen.status, seen.result::text FROM seen WHERE seen.merged_into IS NULL
UNION ALL
SELECT run.id, run.status, run.result::text FROM horsies_workflows run WHERE run.id = ANY (%(ids)s::uuid[])
