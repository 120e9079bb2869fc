-- Records that a worker stopped, and deletes its heartbeats.
-- Locks: this worker's own rows. Index: primary key, horsies_heartbeats_worker.
WITH silent AS (
  DELETE FROM horsies_heartbeats beat WHERE beat.worker_id = %(worker)s::uuid
)
UPDATE horsies_workers worker
SET stopped_at = clock_timestamp(), seen_at = clock_timestamp(), running_sync = 0, running_async = 0
WHERE worker.id = %(worker)s::uuid
