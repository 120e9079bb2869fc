-- Returns the living workers that serve a queue.
-- A worker that is stopping is not among them, but counts for permits, because it holds some: see
-- horsies_workers_serving.
-- Args:
--   p_queue: the name of a queue, or '*' for the cluster, which all workers serve.
--   p_threshold: see horsies_worker_phase; NULL: their heartbeats may have any age.
CREATE OR REPLACE FUNCTION horsies_living_workers(p_queue text, p_threshold interval)
RETURNS SETOF uuid LANGUAGE sql STABLE ROWS 10 AS $$
  SELECT w.id
  FROM horsies_workers w
  JOIN horsies_heartbeats b ON b.id = w.id
  WHERE horsies_worker_phase(w.stopping_at, w.stopped_at, b.sent_at, b.died_at, p_threshold)
      = 'living'
    AND (p_queue = '*' OR w.queues ? p_queue)
$$;
