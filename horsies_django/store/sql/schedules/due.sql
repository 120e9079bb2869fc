-- Returns the names of the schedules that are due, except those in "but". The one that has been due
-- for the longest comes first.
-- The time comes from a sub-select: a volatile call in the condition cannot be an index condition,
-- so the whole index would be read.
-- Index: horsies_schedules_next.
SELECT s.name
FROM horsies_schedules s
WHERE s.next_at <= (SELECT coalesce(%(now)s::timestamptz, clock_timestamp()))
  AND s.name <> ALL (%(but)s::text[])
ORDER BY s.next_at
LIMIT %(many)s::int
