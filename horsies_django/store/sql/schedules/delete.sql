-- Delete a schedule that no code declares, and audit that with the definition that was in force; its fire times go when they are old. No
-- row: it does not exist, or code declares it by now.
-- Locks: the schedule's row; waits for a scheduler that holds it. Index: primary key.
WITH deleted AS (
  DELETE FROM horsies_schedules s
  WHERE s.name = %(name)s::text AND (s.declared_in IS NULL OR s.gone_at IS NOT NULL)
  RETURNING s.name, s.declared || s.changes AS definition
), noted AS (
  INSERT INTO horsies_audit (at, actor, action, subject, reason, before, after)
  SELECT clock_timestamp(), %(actor)s::text, 'schedule.delete', d.name, %(reason)s::text, d.definition, '{}' FROM deleted d
)
SELECT d.name FROM deleted d
