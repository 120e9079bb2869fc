-- Finds the place of a task in a workflow.
-- Returns: its run and node, which element of a map it is, the kind of the node, whether its run is
-- a node of another one, and the name of the run if it has a key. No row: the task is not part of a
-- workflow.
SELECT
  task.workflow_id,
  task.node,
  CASE WHEN own_node.kind = 'map' THEN task.node_index END,
  own_node.kind,
  run.parent_id IS NOT NULL,
  CASE WHEN run.key IS NOT NULL THEN run.name END
FROM horsies_tasks task
JOIN horsies_workflow_nodes own_node
  ON own_node.workflow_id = task.workflow_id AND own_node.number = task.node
JOIN horsies_workflows run ON run.id = task.workflow_id
WHERE task.id = %(task)s::uuid
