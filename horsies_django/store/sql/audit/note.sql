-- Writes into the audit who did what to a task or a workflow run, and why; see functions/audit/horsies_note.sql.
-- Locks: none but the new row. Index: none.
SELECT horsies_note(%(action)s::text, %(actor)s::text, %(subject)s::text, %(reason)s::text, NULL, %(after)s::jsonb)
