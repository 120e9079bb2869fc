-- Reads what decides now about a node of a run; see functions/explain/horsies_explain_node.sql.
-- Locks: none. Index: primary keys, horsies_workflow_edges_up, horsies_workflow_nodes_open, horsies_tasks_node.
SELECT horsies_explain_node(%(workflow)s::uuid, %(number)s::bigint, %(many)s::int)::text
