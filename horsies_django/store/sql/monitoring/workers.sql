-- Reads the workers that are living, stopping or stale, that ended recently, or that hold tasks,
-- and how many tasks they hold. Workers that hold tasks and should not come first.
-- Args: threshold: see horsies_worker_phase; recent: how long ago a worker may have ended.
-- Index: see functions/monitoring/horsies_tasks_per_worker.sql; the other tables have a few rows
-- per worker.
SELECT
  worker.id,
  worker.hostname,
  worker.pid,
  worker.version,
  ARRAY(SELECT jsonb_array_elements_text(worker.queues)),
  seen.state,
  seen.at,
  extract(epoch FROM moment.now - seen.at)::float8,
  worker.processes,
  worker.running_sync,
  worker.running_async,
  worker.memory_usage_mb,
  worker.children_memory_mb,
  coalesce(burden.tasks, 0),
  horsies_ready_processes(worker.*),
  extract(epoch FROM moment.now - worker.started_at)::float8
FROM (SELECT clock_timestamp() AS now OFFSET 0) AS moment
CROSS JOIN horsies_workers worker
LEFT JOIN horsies_heartbeats beat ON beat.id = worker.id
LEFT JOIN horsies_tasks_per_worker() AS burden ON burden.worker = worker.id
CROSS JOIN LATERAL (
  SELECT
    coalesce(beat.sent_at, worker.stopped_at, worker.seen_at) AS at,
    horsies_worker_phase(
      worker.stopping_at, worker.stopped_at, beat.sent_at, beat.died_at, %(threshold)s::interval
    ) AS state
) AS seen
WHERE seen.state IN ('living', 'stopping', 'stale')
  OR burden.tasks > 0
  OR seen.at > moment.now - %(recent)s::interval
ORDER BY
  seen.state NOT IN ('living', 'stopping') AND coalesce(burden.tasks, 0) > 0 DESC,
  array_position(ARRAY['living', 'stopping', 'stale', 'dead', 'stopped'], seen.state),
  worker.hostname,
  worker.pid,
  seen.at DESC
LIMIT %(many)s::int
