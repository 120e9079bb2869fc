-- Delete a schedule that no code declares, and audit that with the definition that was in force; its fire times go when they are old. No
-- row: it does not exist, or code declares it by now.
-- Locks: the schedule's row; waits for a scheduler that holds it.
WITH deleted AS (
  DELETE FROM horsies_schedules s
  WHERE s.name = %(name)s::text AND (s.declared_in IS NULL OR s.gone_at IS NOT NULL)
  RETURNING s.name, s.declared || s.changes AS definition
)
SELECT d.name, horsies_note('schedule.delete', %(actor)s::text, d.name, %(reason)s::text, d.definition, '{}') FROM deleted d
