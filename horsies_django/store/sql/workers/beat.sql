-- Writes the heartbeats of a worker: one row per process, in one statement, and the worker's load. Rows of processes that are gone are
-- deleted.
-- A worker that was declared dead, or whose row is gone, stays dead: nothing is written. Returns the ids that were written.
-- Locks: this worker's own rows. Index: primary keys, horsies_heartbeats_worker.
WITH alive AS (
  UPDATE horsies_heartbeats beat SET sent_at = clock_timestamp()
  WHERE beat.id = %(worker)s::uuid AND beat.died_at IS NULL
  RETURNING beat.id
), load AS (
  UPDATE horsies_workers worker
  SET seen_at = clock_timestamp(), running_sync = %(running_sync)s::int, running_async = %(running_async)s::int,
      memory_usage_mb = %(memory_usage_mb)s::float8, children_memory_mb = %(children_memory_mb)s::float8
  WHERE worker.id IN (SELECT alive.id FROM alive)
), gone AS (
  DELETE FROM horsies_heartbeats beat
  WHERE beat.worker_id IN (SELECT alive.id FROM alive) AND beat.role = 'runner' AND beat.id <> ALL (%(ids)s::uuid[])
), children AS (
  INSERT INTO horsies_heartbeats AS beat (id, worker_id, role, pid, sent_at, holding)
  SELECT child.id, alive.id, 'runner', child.pid, clock_timestamp(), child.holding::jsonb
  FROM alive CROSS JOIN unnest(%(ids)s::uuid[], %(pids)s::int[], %(holding)s::text[]) AS child (id, pid, holding)
  ON CONFLICT (id) DO UPDATE SET sent_at = excluded.sent_at, holding = excluded.holding
  RETURNING beat.id
)
SELECT alive.id FROM alive UNION ALL SELECT children.id FROM children
