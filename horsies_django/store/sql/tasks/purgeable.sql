-- Returns tasks that a purge cancels or deletes; see functions/tasks/horsies_purgeable.sql.
-- Locks: none. Index: horsies_tasks_claim, horsies_tasks_parked, horsies_tasks_finished.
SELECT p.id FROM horsies_purgeable(
  %(finished)s::boolean, %(queue)s::text, %(name)s::text, %(status)s::text, %(before)s::timestamptz, false, %(many)s::int) AS p (id)
