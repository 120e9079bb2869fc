-- Runs the failed nodes of a run again; see functions/workflows/horsies_retry_run.sql.
-- Locks: the row of the run, then task rows. Index: primary keys, horsies_tasks_node.
SELECT r.verdict FROM horsies_retry_run(%(workflow)s::uuid, %(nested)s::boolean, %(max_bytes)s::int, %(channel)s::text, %(now)s::timestamptz) AS r
