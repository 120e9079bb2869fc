-- Reads the status of tasks and runs that callers wait for and, once final, the results. merged: it was merged into an equal task, whose result
-- find_merged.sql reads: this happens seldom, and following it here would take most of the time.
SELECT task.id, task.status, task.result::text, task.merged_into IS NOT NULL AS merged FROM horsies_tasks task WHERE task.id = ANY (%(ids)s::uuid[])
UNION ALL
SELECT run.id, run.status, run.result::text, false FROM horsies_workflows run WHERE run.id = ANY (%(ids)s::uuid[])
