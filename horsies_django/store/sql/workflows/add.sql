-- Inserts nodes of a run and their edges; see functions/workflows/horsies_add_nodes.sql. Returns the numbers of new nodes.
-- Locks: none but the new rows. Index: horsies_workflow_nodes_name.
SELECT horsies_add_nodes(%(workflow)s::uuid, -1, %(nodes)s::jsonb, '{}', %(now)s::timestamptz)
