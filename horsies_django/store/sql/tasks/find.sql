-- Reads the status of tasks and runs for which callers wait and, once final, the results.
-- Returns: merged: whether the task was merged into an equal task, whose result find_merged.sql
-- reads. This happens seldom, and following the merge here would take most of the time.
SELECT task.id, task.status, task.result::text, task.merged_into IS NOT NULL AS merged
FROM horsies_tasks task
WHERE task.id = ANY (%(ids)s::uuid[])
UNION ALL
SELECT run.id, run.status, run.result::text, false
FROM horsies_workflows run
WHERE run.id = ANY (%(ids)s::uuid[])
