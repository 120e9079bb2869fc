-- Returns the latest fire times of schedules and the status of their tasks. The status is NULL if
-- the task has been deleted. The task of a fire time that was skipped is the unfinished one for
-- which it was skipped.
SELECT t.schedule_name, t.fire_at, t.sent_at, t.task_id, k.status, t.skipped
FROM unnest(%(names)s::text[]) AS n (name)
CROSS JOIN LATERAL (
  SELECT
    s.schedule_name,
    s.fire_at,
    s.sent_at,
    coalesce(s.task_id, s.skipped_for) AS task_id,
    s.skipped_for IS NOT NULL AS skipped
  FROM horsies_schedule_ticks s
  WHERE s.schedule_name = n.name
  ORDER BY s.fire_at DESC
  LIMIT %(many)s::int
) t
LEFT JOIN horsies_tasks k ON k.id = t.task_id
ORDER BY t.schedule_name, t.fire_at DESC
