-- Inserts a run without nodes, or finds the one of the same name and key; see functions/workflows/horsies_create_run.sql.
-- Locks: none but the new row. Index: horsies_workflows_key.
SELECT r.id, r.hash, r.created FROM horsies_create_run(%(id)s::uuid, %(run)s::jsonb, NULL, NULL, %(now)s::timestamptz) AS r
