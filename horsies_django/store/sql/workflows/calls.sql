-- Groups the calls that runs still have to make; see functions/workflows/horsies_open_calls.sql.
-- Locks: none. Index: horsies_workflow_nodes_open, primary keys.
SELECT c.task, c.queue, c.undo, c.codec, c.given::text, c.nodes, c.runs, c.node, c.first, c.last
FROM horsies_open_calls(%(runs)s::uuid[]) AS c
