-- Returns the run and the node of a task; no row if it is not part of a workflow.
-- Locks: none. Index: primary key.
SELECT t.workflow_id, t.node FROM horsies_tasks t WHERE t.id = %(task)s::uuid AND t.workflow_id IS NOT NULL AND t.node IS NOT NULL
