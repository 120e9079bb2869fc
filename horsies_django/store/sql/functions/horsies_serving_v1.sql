-- How many living workers serve a queue; all of them serve the cluster, '*'.
-- Locks: none. Index: none; both tables hold a few rows per worker.
CREATE FUNCTION horsies_serving_v1(p_queue text) RETURNS int LANGUAGE sql STABLE AS $$
  SELECT count(*)::int FROM horsies_servers_v1(p_queue)
$$;
