-- Pauses, resumes or cancels a run; see functions/workflows/horsies_control_run.sql. Returns its status before and after.
-- Locks: the row of the run, then task rows. Index: primary key.
SELECT c.before, c.after
FROM horsies_control_run(%(workflow)s::uuid, %(verb)s::text, %(max_bytes)s::int, %(channel)s::text, %(now)s::timestamptz) AS c
