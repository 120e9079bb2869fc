-- The schedules that have to be looked at, the longest due first, but for those that this process knows nothing about.
-- The moment comes from a query of its own: a call of the clock in the condition would not be asked of the index, which would be read
-- to its end.
-- Locks: none. Index: horsies_schedules_next.
SELECT s.name FROM horsies_schedules s
WHERE s.next_at <= (SELECT coalesce(%(now)s::timestamptz, clock_timestamp())) AND s.name <> ALL (%(but)s::text[])
ORDER BY s.next_at LIMIT %(many)s::int
