-- Returns how many of the named schedules users have not disabled, and when a scheduler last
-- recorded that one of them is in its code.
SELECT
  cardinality(%(names)s::text[]) - count(*) FILTER (WHERE s.changes ->> 'enabled' = 'false'),
  max(s.declared_at)
FROM horsies_schedules s
WHERE s.name = ANY (%(names)s::text[])
