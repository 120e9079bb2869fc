-- Returns the unfinished child runs of a run.
-- Without OFFSET 0, a plan may read all unfinished runs.
-- Index: horsies_workflows_parent.
SELECT child.id
FROM (
  SELECT run.id, run.finished_at
  FROM horsies_workflows run
  WHERE run.parent_id = %(workflow)s::uuid
  OFFSET 0
) AS child
WHERE child.finished_at IS NULL
ORDER BY child.id
