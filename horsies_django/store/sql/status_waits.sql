-- Say since when due tasks wait; see functions/horsies_waits.sql.
-- Locks: none. Index: horsies_tasks_claim.
SELECT w.queue_name, w.seconds FROM horsies_waits(%(names)s::text[]) AS w
