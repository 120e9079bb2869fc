-- Note how far a schedule came, what its last look ended with, and when the next one is. last_slot never goes back.
-- Locks: the schedule's row. Index: primary key.
UPDATE horsies_schedules s
SET last_slot = greatest(s.last_slot, %(last_slot)s::timestamptz), next_slot = %(next_slot)s::timestamptz,
    next_at = %(next_at)s::timestamptz, rules = %(rules)s::smallint, error = %(error)s::text,
    error_at = CASE WHEN %(error)s::text IS NOT NULL THEN clock_timestamp() END, updated_at = clock_timestamp()
WHERE s.name = %(name)s::text
