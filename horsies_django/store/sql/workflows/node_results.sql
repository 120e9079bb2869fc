-- Reads the nodes of a run with their results, in the order of their numbers.
SELECT n.number, n.name, n.kind, n.status, n.task_name, r.result::text
FROM horsies_workflow_nodes n
CROSS JOIN LATERAL horsies_node_result(n.workflow_id, n.number) AS r
WHERE n.workflow_id = %(workflow)s::uuid
ORDER BY n.number
