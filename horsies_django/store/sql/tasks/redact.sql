-- Remove what a finished task says about people; see functions/tasks/horsies_redact.sql. Returns the status, NULL when there is no such task,
-- and whether anything was removed.
-- Locks: the task's row, waiting for whoever has it. Index: primary keys.
SELECT r.status, r.redacted FROM horsies_redact(%(id)s::uuid, %(actor)s::text, %(reason)s::text) AS r
