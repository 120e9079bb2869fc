-- Returns the unfinished child runs of a run.
-- Locks: none. Index: horsies_workflows_parent.
SELECT run.id FROM horsies_workflows run WHERE run.parent_id = %(workflow)s::uuid AND run.finished_at IS NULL ORDER BY run.id
