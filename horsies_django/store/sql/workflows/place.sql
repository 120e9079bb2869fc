-- Finds the place of a task in a workflow.
-- Returns: its run and node, which element of a map it is, the kind of the node, whether its run is
-- a node of another one, and the name of the run if it has a key. No row: the task is not part of a
-- workflow.
SELECT
  t.workflow_id,
  t.node,
  CASE WHEN n.kind = 'map' THEN t.node_index END,
  n.kind,
  w.parent_id IS NOT NULL,
  CASE WHEN w.key IS NOT NULL THEN w.name END
FROM horsies_tasks t
JOIN horsies_workflow_nodes n ON n.workflow_id = t.workflow_id AND n.number = t.node
JOIN horsies_workflows w ON w.id = t.workflow_id
WHERE t.id = %(task)s::uuid
