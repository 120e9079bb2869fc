-- Disables the schedules that no scheduler has had in its code for a while, and writes an audit
-- entry for each.
-- Returns: their names, and the reason if an audit entry is lost.
-- Locks: the rows of the schedules, skipping locked ones.
WITH gone AS (
  UPDATE horsies_schedules s
  SET gone_at = clock_timestamp(), next_at = NULL, next_fire_at = NULL
  WHERE s.name = ANY (ARRAY(
    SELECT d.name
    FROM horsies_schedules d
    WHERE d.declared_in IS NOT NULL
      AND d.gone_at IS NULL
      AND d.declared_at < clock_timestamp() - %(after)s::interval
    FOR NO KEY UPDATE SKIP LOCKED
  ))
  RETURNING s.name
)
SELECT
  g.name,
  horsies_note(
    'schedule.gone', %(actor)s::text, g.name, NULL, '{"gone": false}', '{"gone": true}'
  )
FROM gone g
