-- Returns a number for a node that a running task adds; those of a graph are smaller.
-- Locks: none. Index: none.
SELECT nextval('horsies_workflow_node_numbers')
