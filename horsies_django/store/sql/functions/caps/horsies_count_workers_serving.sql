-- Returns how many living workers serve a queue; for '*', the cluster, how many live.
-- Locks: none. Index: none; both tables have a few rows per worker.
CREATE FUNCTION horsies_count_workers_serving(p_queue text) RETURNS int LANGUAGE sql STABLE AS $$
  SELECT count(*)::int FROM horsies_workers_serving(p_queue)
$$;
