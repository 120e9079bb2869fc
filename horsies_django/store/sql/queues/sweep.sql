-- Bring some of a queue's waiting tasks in line with its limits; see functions/partitions/horsies_sweep.sql.
-- Locks: the queue's row and advisory lock; task rows, never waiting. Index: horsies_tasks_parked, horsies_tasks_claim.
SELECT horsies_sweep(%(name)s::text, %(many)s::int, %(channel)s::text)
