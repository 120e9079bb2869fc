-- The schedules that have to be looked at, the longest due first, but for those that this process knows nothing about.
-- Locks: none. Index: horsies_schedules_next.
SELECT s.name FROM horsies_schedules s
WHERE s.next_at <= coalesce(%(now)s::timestamptz, clock_timestamp()) AND s.name <> ALL (%(but)s::text[])
ORDER BY s.next_at LIMIT %(many)s::int
