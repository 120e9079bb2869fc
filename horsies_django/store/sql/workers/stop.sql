-- Records that a worker stopped, deletes its heartbeats, and notifies the workers of its team that
-- take the place of an elected one.
-- The first (place 0), the second (1) and the last worker (2) of a team, by id, are elected. A
-- worker is notified if it has its place only since the stopped one is gone.
-- Locks: the rows of this worker.
-- Index: primary key, horsies_heartbeats_worker, horsies_heartbeats_parents.
WITH silent AS (
  DELETE FROM horsies_heartbeats beat
  WHERE beat.worker_id = %(worker)s::uuid
  RETURNING beat.id, beat.team
), stopped AS (
  UPDATE horsies_workers worker
  SET
    stopped_at = clock_timestamp(),
    seen_at = clock_timestamp(),
    running_sync = 0,
    running_async = 0
  WHERE worker.id = %(worker)s::uuid
), elected AS (
  SELECT
    other.id,
    silent.id AS gone,
    CASE row_number() OVER (ORDER BY other.id)
      WHEN 1 THEN 0
      WHEN 2 THEN 1
      WHEN count(*) OVER () THEN 2
    END AS place
  FROM silent
  JOIN horsies_heartbeats other ON other.team = silent.team
  WHERE other.role = 'claimer'
    AND other.died_at IS NULL
    AND other.id <> silent.id
    AND other.listens
)
SELECT pg_notify(%(channel)s::text || '_' || elected.id, 'place ' || elected.place)
FROM elected
WHERE elected.place < 2 AND elected.id > elected.gone
  OR elected.place = 2 AND elected.id < elected.gone
