-- Returns the runs, among the given ones, that have signals which no advance has seen, or that
-- still have to be advanced (owed_at is set).
-- Index: horsies_signals_unseen, primary key.
SELECT signal.workflow_id
FROM horsies_workflow_signals signal
WHERE signal.workflow_id = ANY (%(ids)s::uuid[]) AND signal.seen_at IS NULL
UNION
SELECT run.id
FROM horsies_workflows run
WHERE run.id = ANY (%(ids)s::uuid[]) AND run.owed_at IS NOT NULL
