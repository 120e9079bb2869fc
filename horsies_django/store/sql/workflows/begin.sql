-- Sends the first tasks of a new run; see functions/workflows/horsies_begin_run.sql.
-- Locks: the row of the run. Index: horsies_workflow_nodes_open.
SELECT horsies_begin_run(%(workflow)s::uuid, %(limit)s::int, %(max_bytes)s::int, %(channel)s::text, %(now)s::timestamptz)
