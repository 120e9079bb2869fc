-- Counts the claimed and running tasks of each worker.
-- Index: horsies_tasks_holding, which has an entry per task in flight.
CREATE OR REPLACE FUNCTION horsies_tasks_per_worker() RETURNS TABLE (worker uuid, tasks int)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
  RETURN QUERY
  SELECT t.claimed_by, count(*)::int
  FROM horsies_tasks t
  WHERE t.claimed_by IS NOT NULL AND t.finished_at IS NULL
  GROUP BY t.claimed_by;
END
$$;
