-- Writes the heartbeats of a worker: one row per process, in one statement, and the worker's load. Rows of processes that are gone are
-- deleted.
-- A worker that was declared dead, or whose row is gone, stays dead: nothing is written. Returns the ids that were written; for the worker
-- itself also its place in its team, by id, of those that listen: 0 to 2 are elected.
-- Locks: this worker's own rows. Index: primary keys, horsies_heartbeats_worker, horsies_heartbeats_team.
WITH alive AS (
  UPDATE horsies_heartbeats beat SET sent_at = clock_timestamp(), listens = %(listens)s::boolean
  WHERE beat.id = %(worker)s::uuid AND beat.died_at IS NULL
  RETURNING beat.id, beat.team
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
SELECT alive.id, (SELECT nullif(count(*), 3)::int FROM (
  SELECT FROM horsies_heartbeats other
  WHERE other.team = alive.team AND other.id < alive.id AND other.listens AND other.died_at IS NULL LIMIT 3) AS before) AS place
FROM alive UNION ALL SELECT children.id, NULL FROM children
