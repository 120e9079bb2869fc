-- Say since when due tasks wait; see functions/horsies_waits_v1.sql.
-- Locks: none. Index: horsies_tasks_claim.
SELECT w.queue_name, w.seconds FROM horsies_waits_v1(%(names)s::text[]) AS w
