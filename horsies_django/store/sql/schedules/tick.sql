-- Note that slots are sent as tasks; returns the tasks whose slots were not sent before.
-- Locks: none but the new rows. Index: primary keys.
INSERT INTO horsies_schedule_ticks (schedule_name, slot, task_id)
SELECT s.name, t.slot, t.task_id
FROM horsies_schedules s, ROWS FROM (unnest(%(slots)s::timestamptz[]), unnest(%(task_ids)s::uuid[])) AS t (slot, task_id)
WHERE s.name = %(name)s::text AND (s.last_slot IS NULL OR s.last_slot < t.slot)
ON CONFLICT DO NOTHING RETURNING task_id
