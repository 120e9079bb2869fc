-- Returns the schedules that are overdue, that could not send the task of their last fire time, or
-- that missed fire times not long ago. The one that has been due for the longest comes first.
-- Args: late: how long a schedule may be due; missed: for how long missed fire times are reported.
SELECT
  s.name,
  extract(epoch FROM clock_timestamp() - s.next_at)::float8 AS late_seconds,
  s.error,
  s.error_at,
  CASE WHEN s.missed_at > clock_timestamp() - %(missed)s::interval THEN s.missed_at END AS missed_at
FROM horsies_schedules s
WHERE s.gone_at IS NULL
  AND (
    s.next_at < clock_timestamp() - %(late)s::interval
    OR s.error IS NOT NULL
    OR s.missed_at > clock_timestamp() - %(missed)s::interval
  )
ORDER BY s.next_at, s.name
LIMIT %(many)s::int
