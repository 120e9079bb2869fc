-- Reads the status and the result of the tasks into which tasks were merged, by the ids of the latter. It is one statement, because a
-- merge is undone if the task into which it went does not run.
WITH RECURSIVE seen AS (
  SELECT task.id, task.status, task.result, task.merged_into FROM horsies_tasks task WHERE task.id = ANY (%(ids)s::uuid[])
  UNION ALL
  SELECT seen.id, task.status, task.result, task.merged_into FROM seen JOIN horsies_tasks task ON task.id = seen.merged_into
)
SELECT seen.id, seen.status, seen.result::text FROM seen WHERE seen.merged_into IS NULL
