-- Deletes a batch of workers that stopped or died long ago, with their heartbeats, except those to
-- which rows of other tables refer.
-- A worker that was never declared dead is kept, because with a long threshold it may come back.
-- Few workers that started so long ago still run.
-- Locks: the workers of the batch, skipping locked ones; the deleted heartbeats.
-- Index: horsies_workers_started, primary key, horsies_heartbeats_worker.
WITH old AS MATERIALIZED (
  SELECT worker.id
  FROM horsies_workers worker
  WHERE worker.started_at < clock_timestamp() - %(age)s::interval
    AND worker.seen_at < clock_timestamp() - %(age)s::interval
    AND NOT EXISTS (
      SELECT
      FROM horsies_heartbeats beat
      WHERE beat.id = worker.id AND beat.died_at IS NULL
    )
  ORDER BY worker.started_at
  LIMIT %(many)s::int
  FOR UPDATE SKIP LOCKED
), gone AS MATERIALIZED (
  SELECT old.id
  FROM old
  WHERE old.id <> ALL (ARRAY(
    SELECT unnest(horsies_referenced('horsies_workers', ARRAY(SELECT old.id FROM old)))
  ))
), silent AS (
  DELETE FROM horsies_heartbeats beat
  WHERE beat.worker_id = ANY (ARRAY(SELECT gone.id FROM gone))
)
DELETE FROM horsies_workers worker
WHERE worker.id = ANY (ARRAY(SELECT gone.id FROM gone))
