-- Returns the seconds until the next schedule is due, except those in "but"; NULL if there is none.
-- Index: horsies_schedules_next.
SELECT extract(epoch FROM (
  SELECT s.next_at
  FROM horsies_schedules s
  WHERE s.next_at IS NOT NULL AND s.name <> ALL (%(but)s::text[])
  ORDER BY s.next_at
  LIMIT 1
) - coalesce(%(now)s::timestamptz, clock_timestamp()))::float8
