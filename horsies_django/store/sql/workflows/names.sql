-- Returns the names of runs, in order, without reading all runs: one probe per name.
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
