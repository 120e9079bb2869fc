-- In how many seconds the next schedule has to be looked at; NULL: there is none. In one that this process knows nothing about: never.
-- Locks: none. Index: horsies_schedules_next.
SELECT extract(epoch FROM (
  SELECT s.next_at FROM horsies_schedules s
  WHERE s.next_at IS NOT NULL AND s.name <> ALL (%(but)s::text[]) ORDER BY s.next_at LIMIT 1
) - coalesce(%(now)s::timestamptz, clock_timestamp()))::float8
