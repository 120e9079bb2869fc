-- Change a schedule and everything that depends on its definition; see functions/schedules/horsies_change_schedule.sql.
-- Locks: the schedule's row. Index: primary key.
SELECT c.changed, c.lost
FROM horsies_change_schedule(%(name)s::text, %(declared)s::jsonb, %(declared_in)s::text, %(changes)s::jsonb, %(drop)s::text[],
                             %(create)s::boolean, %(action)s::text, %(actor)s::text, %(reason)s::text, %(channel)s::text) AS c
