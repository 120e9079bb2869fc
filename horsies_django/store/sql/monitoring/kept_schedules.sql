-- Returns how many of these schedules users have not disabled, and when a scheduler last recorded that one of them is in its code.
-- Locks: none. Index: none; the table is small.
SELECT cardinality(%(names)s::text[]) - count(*) FILTER (WHERE s.changes ->> 'enabled' = 'false'), max(s.declared_at)
FROM horsies_schedules s WHERE s.name = ANY (%(names)s::text[])
