-- Returns the living workers that serve a queue; for '*', the cluster, all living workers. p_threshold:
-- see horsies_worker_phase; NULL: however old their heartbeats are.
-- For permits, workers count that stop, too, because they hold some: see horsies_workers_serving.
CREATE OR REPLACE FUNCTION horsies_living_workers(p_queue text, p_threshold interval) RETURNS SETOF uuid
LANGUAGE sql STABLE ROWS 10 AS $$
  SELECT w.id FROM horsies_workers w JOIN horsies_heartbeats b ON b.id = w.id
  WHERE horsies_worker_phase(w.stopping_at, w.stopped_at, b.sent_at, b.died_at, p_threshold) = 'living'
    AND (p_queue = '*' OR w.queues ? p_queue)
$$;
