-- Returns the number of the node that a node of a run added under a name.
-- Locks: none. Index: horsies_workflow_nodes_name.
SELECT n.number FROM horsies_workflow_nodes n
WHERE n.workflow_id = %(workflow)s::uuid AND n.added_by = %(added_by)s::bigint AND n.name = %(name)s::text
