-- Records that schedules are still in the code of a scheduler.
-- Returns: the names of the schedules that are disabled as gone from the code.
-- Locks: the rows of the schedules, skipping locked ones.
WITH signed AS (
  UPDATE horsies_schedules schedule
  SET declared_at = clock_timestamp()
  WHERE schedule.name = ANY (ARRAY(
    SELECT named.name
    FROM horsies_schedules named
    WHERE named.name = ANY (%(names)s::text[])
    FOR NO KEY UPDATE SKIP LOCKED
  ))
  RETURNING schedule.name, schedule.gone_at
)
SELECT disabled.name
FROM signed disabled
WHERE disabled.gone_at IS NOT NULL
