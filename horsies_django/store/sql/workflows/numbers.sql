-- Returns numbers for nodes that a running task adds; those of a graph are smaller.
-- Locks: none. Index: none.
SELECT nextval('horsies_workflow_node_numbers') FROM generate_series(1, %(many)s::int)
