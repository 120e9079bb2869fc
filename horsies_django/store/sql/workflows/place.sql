-- Returns the run and the node of a task, and which element of a map it is; no row if it is not part of a workflow.
-- Locks: none. Index: primary keys.
SELECT t.workflow_id, t.node, CASE WHEN n.kind = 'map' THEN t.node_index END
FROM horsies_tasks t JOIN horsies_workflow_nodes n ON n.workflow_id = t.workflow_id AND n.number = t.node
WHERE t.id = %(task)s::uuid
