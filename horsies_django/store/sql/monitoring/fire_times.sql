-- Reads when schedules fire next, as an epoch.
-- Schedules that are off or gone, or that no scheduler has seen yet, have no such time.
SELECT s.name, extract(epoch FROM s.next_fire_at)::float8
FROM horsies_schedules s
WHERE s.next_fire_at IS NOT NULL
ORDER BY s.name
LIMIT %(many)s::int
