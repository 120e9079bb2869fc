-- Returns how many tasks a purge concerns, and how many it leaves because they belong to workflow runs; see horsies_purgeable.
-- Locks: none. Index: horsies_tasks_claim, horsies_tasks_parked, horsies_tasks_finished.
SELECT (SELECT count(*) FROM horsies_purgeable(
          %(finished)s::boolean, %(queue)s::text, %(name)s::text, %(status)s::text, %(before)s::timestamptz, false, NULL)),
       (SELECT count(*) FROM horsies_purgeable(
          %(finished)s::boolean, %(queue)s::text, %(name)s::text, %(status)s::text, %(before)s::timestamptz, true, NULL))
