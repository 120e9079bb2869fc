-- Deletes a schedule that no code declares, and writes an audit entry with the definition that was
-- in force. The fire times of the schedule are deleted later, when they are old.
-- Returns: the name, and the reason if the audit entry is lost. No row: the schedule does not
-- exist, or code declares it by now.
-- Locks: the row of the schedule; waits for a scheduler that holds it.
WITH deleted AS (
  DELETE FROM horsies_schedules s
  WHERE s.name = %(name)s::text AND (s.declared_in IS NULL OR s.gone_at IS NOT NULL)
  RETURNING s.name, s.declared || s.changes AS definition
)
SELECT
  d.name,
  horsies_note(
    'schedule.delete', %(actor)s::text, d.name, %(reason)s::text, d.definition, '{}'
  )
FROM deleted d
