-- Records that a worker takes no more tasks, while its running ones end.
-- Locks: the row of this worker.
UPDATE horsies_workers worker
SET stopping_at = clock_timestamp()
WHERE worker.id = %(worker)s::uuid AND worker.stopping_at IS NULL
