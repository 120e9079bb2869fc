-- Returns how long the oldest due task of each queue has waited; see functions/monitoring/horsies_longest_waits.sql.
-- Locks: none. Index: horsies_tasks_claim.
SELECT w.queue_name, w.seconds FROM horsies_longest_waits(%(names)s::text[]) AS w
