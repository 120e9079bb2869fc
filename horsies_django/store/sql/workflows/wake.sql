-- Advances runs with waits whose time is over; see functions/workflows/horsies_wake.sql.
-- Locks: rows of runs, skipping locked ones, then task rows, skipping locked ones. Index: horsies_workflow_nodes_due.
SELECT w.workflow, w.busy, w.many, w.more, w.finished, w.parent, w.halted
FROM horsies_wake(%(many)s::int, %(limit)s::int, %(max_bytes)s::int, %(channel)s::text, %(now)s::timestamptz) AS w
