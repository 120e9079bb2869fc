-- Beat: one row per process of this worker, all in one statement, with the worker's load; processes that are gone lose theirs.
-- A beat that was declared dead stays dead: it is not revived here. Returns the ids that beat.
-- Locks: this worker's own rows. Index: primary keys, horsies_heartbeats_worker.
WITH load AS (
  UPDATE horsies_workers worker
  SET seen_at = clock_timestamp(), running_sync = %(running_sync)s::int, running_async = %(running_async)s::int,
      memory_usage_mb = %(memory_usage_mb)s::float8, children_memory_mb = %(children_memory_mb)s::float8
  WHERE worker.id = %(worker)s::uuid
), gone AS (
  DELETE FROM horsies_heartbeats beat WHERE beat.worker_id = %(worker)s::uuid AND beat.id <> ALL (%(ids)s::uuid[])
)
INSERT INTO horsies_heartbeats AS beat (id, worker_id, role, pid, sent_at)
SELECT process.id, %(worker)s::uuid, process.role, process.pid, clock_timestamp()
FROM unnest(%(ids)s::uuid[], %(roles)s::text[], %(pids)s::int[]) AS process (id, role, pid)
ON CONFLICT (id) DO UPDATE SET sent_at = excluded.sent_at WHERE beat.died_at IS NULL
RETURNING beat.id
