-- Finds what is left to be advanced; see functions/workflows/horsies_owed.sql.
-- Locks: none. Index: horsies_tasks_unadvanced, horsies_workflows_untold, horsies_workflows_owed, horsies_workflow_nodes_added,
-- horsies_workflow_nodes_due, horsies_signals_unseen.
SELECT o.workflow, o.task, o.child FROM horsies_owed(%(age)s::interval, %(many)s::int, %(now)s::timestamptz) AS o
