-- Returns the workers that serve a queue and may hold permits of it: they have not stopped and were
-- not declared dead. horsies_living_workers returns the workers that are living and take tasks.
-- Args: p_queue is the name of a queue, or '*' for the cluster, which all workers serve.
CREATE OR REPLACE FUNCTION horsies_workers_serving(p_queue text) RETURNS SETOF uuid
LANGUAGE sql STABLE ROWS 10 AS $$
  SELECT w.id
  FROM horsies_workers w
  JOIN horsies_heartbeats b ON b.id = w.id
  WHERE b.died_at IS NULL
    AND w.stopped_at IS NULL
    AND (p_queue = '*' OR w.queues ? p_queue)
$$;
