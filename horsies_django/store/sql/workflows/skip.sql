-- Skips a node that has not begun; see functions/workflows/horsies_skip_node.sql.
-- Locks: the row of the run, then the task's. Index: primary keys.
SELECT horsies_skip_node(%(workflow)s::uuid, %(number)s::bigint, %(max_bytes)s::int, %(channel)s::text, %(now)s::timestamptz)
