-- Records that schedules are still in the code of a scheduler.
-- Returns: the names of the schedules that are disabled as gone from the code.
-- Locks: the rows of the schedules, skipping locked ones.
WITH signed AS (
  UPDATE horsies_schedules s
  SET declared_at = clock_timestamp()
  WHERE s.name = ANY (ARRAY(
    SELECT d.name
    FROM horsies_schedules d
    WHERE d.name = ANY (%(names)s::text[])
    FOR NO KEY UPDATE SKIP LOCKED
  ))
  RETURNING s.name, s.gone_at
)
SELECT g.name
FROM signed g
WHERE g.gone_at IS NOT NULL
