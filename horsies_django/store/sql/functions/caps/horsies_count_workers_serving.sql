-- How many living workers serve a queue; all of them serve the cluster, '*'.
-- Locks: none. Index: none; both tables hold a few rows per worker.
CREATE FUNCTION horsies_count_workers_serving(p_queue text) RETURNS int LANGUAGE sql STABLE AS $$
  SELECT count(*)::int FROM horsies_workers_serving(p_queue)
$$;
