-- Returns the runs that nodes of a run have begun, with the names and numbers of these nodes, in
-- the order of the nodes. A run that a retry replaced is not among them.
-- Index: horsies_workflows_parent, then the primary key of nodes.
SELECT node.name, node.number, run.id
FROM horsies_workflows run
JOIN horsies_workflow_nodes node
  ON node.workflow_id = run.parent_id
  AND node.number = run.parent_node
  AND node.task_id = run.id
WHERE run.parent_id = %(workflow)s::uuid
ORDER BY node.number
