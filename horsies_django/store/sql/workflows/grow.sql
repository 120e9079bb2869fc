-- Adds nodes to a run for a running task, if this is still its current attempt. Returns the numbers of new nodes; NULL: it is not.
-- Locks: none but the new rows. Index: primary keys, horsies_workflow_nodes_name.
SELECT horsies_add_nodes(t.workflow_id, t.node, %(nodes)s::jsonb, '{}', NULL)
FROM horsies_tasks t
WHERE t.id = %(task)s::uuid AND t.status = 'RUNNING' AND t.retry_count + 1 = %(attempt)s::int AND t.node IS NOT NULL
