-- Returns the runs among some that have signals which no advance has seen.
-- Locks: none. Index: horsies_signals_unseen.
SELECT DISTINCT signal.workflow_id FROM horsies_workflow_signals signal
WHERE signal.workflow_id = ANY (%(ids)s::uuid[]) AND signal.seen_at IS NULL
