-- Brings some of a queue's waiting tasks in line with its limits; see functions/partitions/horsies_sweep.sql.
-- Locks: the queue's advisory lock; its row and task rows, skipping locked ones. Index: horsies_tasks_parked, horsies_tasks_claim.
SELECT horsies_sweep(%(name)s::text, %(many)s::int, %(channel)s::text)
