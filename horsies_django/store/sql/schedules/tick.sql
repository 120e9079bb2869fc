-- Record which task each fire time is sent as; return the tasks whose fire times had not been sent before.
-- Locks: only the new rows. Index: primary keys.
INSERT INTO horsies_schedule_ticks (schedule_name, fire_at, task_id)
SELECT s.name, t.fire_at, t.task_id
FROM horsies_schedules s, ROWS FROM (unnest(%(fire_times)s::timestamptz[]), unnest(%(task_ids)s::uuid[])) AS t (fire_at, task_id)
WHERE s.name = %(name)s::text AND (s.last_fire_at IS NULL OR s.last_fire_at < t.fire_at)
ON CONFLICT DO NOTHING RETURNING task_id
