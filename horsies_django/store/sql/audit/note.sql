-- Writes into the audit who did what to a task or a workflow run, and why.
-- Locks: none but the new row.
INSERT INTO horsies_audit (actor, action, subject, reason, after)
VALUES (%(actor)s::text, %(action)s::text, %(subject)s::text, %(reason)s::text, %(after)s::jsonb)
