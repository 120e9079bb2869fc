-- Disables the schedules that no scheduler has had in its code for a while, and writes an audit
-- entry for each.
-- Returns: their names, and the reason if an audit entry is lost.
-- Locks: the rows of the schedules, skipping locked ones.
WITH gone AS (
  UPDATE horsies_schedules schedule
  SET gone_at = clock_timestamp(), next_at = NULL, next_fire_at = NULL
  WHERE schedule.name = ANY (ARRAY(
    SELECT stale.name
    FROM horsies_schedules stale
    WHERE stale.declared_in IS NOT NULL
      AND stale.gone_at IS NULL
      AND stale.declared_at < clock_timestamp() - %(after)s::interval
    FOR NO KEY UPDATE SKIP LOCKED
  ))
  RETURNING schedule.name
)
SELECT
  disabled.name,
  horsies_note(
    'schedule.gone', %(actor)s::text, disabled.name, NULL, '{"gone": false}', '{"gone": true}'
  )
FROM gone disabled
