-- Returns the distinct names of runs, in order. It reads one index entry per name, not all runs.
-- Args: many: the most names.
-- Index: horsies_workflows_name.
WITH RECURSIVE step (name) AS (
  (
    SELECT run.name
    FROM horsies_workflows run
    ORDER BY run.name
    LIMIT 1
  )
  UNION ALL
  SELECT (
    SELECT run.name
    FROM horsies_workflows run
    WHERE run.name > step.name
    ORDER BY run.name
    LIMIT 1
  )
  FROM step
  WHERE step.name IS NOT NULL
)
SELECT step.name
FROM step
WHERE step.name IS NOT NULL
LIMIT %(many)s::int
