-- Returns the workers that serve a queue and may hold permits of it: those that have not stopped and were not declared dead. For '*', the
-- cluster, all such workers. Which ones are living, and take tasks, is said by horsies_living_workers.
CREATE OR REPLACE FUNCTION horsies_workers_serving(p_queue text) RETURNS SETOF uuid LANGUAGE sql STABLE ROWS 10 AS $$
  SELECT w.id FROM horsies_workers w JOIN horsies_heartbeats b ON b.id = w.id
  WHERE b.died_at IS NULL AND w.stopped_at IS NULL AND (p_queue = '*' OR w.queues ? p_queue)
$$;
