-- Records that a schedule has fired, or failed to. The column last_fire_at never moves back.
-- Args:
--   last_fire_at: the last fire time that was handled; next_fire_at: the next one.
--   next_at: when a scheduler checks the schedule next.
--   rules: the version of the rules that computed next_fire_at.
--   error: why the schedule cannot fire, or NULL.
--   missed: whether fire times were skipped.
-- Locks: the row of the schedule.
UPDATE horsies_schedules s
SET
  last_fire_at = greatest(s.last_fire_at, %(last_fire_at)s::timestamptz),
  next_fire_at = %(next_fire_at)s::timestamptz,
  next_at = %(next_at)s::timestamptz,
  rules = %(rules)s::smallint,
  error = %(error)s::text,
  error_at = CASE WHEN %(error)s::text IS NOT NULL THEN clock_timestamp() END,
  missed_at = CASE WHEN %(missed)s::boolean THEN clock_timestamp() ELSE s.missed_at END,
  updated_at = clock_timestamp()
WHERE s.name = %(name)s::text
