-- Records that a worker takes no more tasks, while its running ones end.
-- Locks: this worker's own row.
UPDATE horsies_workers worker SET stopping_at = clock_timestamp()
WHERE worker.id = %(worker)s::uuid AND worker.stopping_at IS NULL
