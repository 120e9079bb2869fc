-- Removes the data of a finished task; see functions/tasks/horsies_redact.sql. Returns the status, NULL if there is no such task,
-- whether anything was removed, and why the entry of the audit is lost, if it is.
-- Locks: the task's row; waits for its holder. Index: primary keys.
SELECT r.status, r.redacted, r.lost FROM horsies_redact(%(id)s::uuid, %(actor)s::text, %(reason)s::text) AS r
