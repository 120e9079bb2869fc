-- Counts the tasks of queues that are due and wait, up to a bound; see functions/monitoring/horsies_count_pending.sql.
-- Locks: none. Index: horsies_tasks_claim, horsies_tasks_parked.
SELECT p.queue_name, p.many FROM horsies_count_pending(%(names)s::text[], %(bound)s::int) AS p
