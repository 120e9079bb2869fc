-- How many tasks of each queue run, and how many permits they and the claimed ones hold; the total has the name of the cluster.
-- Locks: none. Index: horsies_tasks_holding: as many entries as tasks are in flight, however many wait.
CREATE FUNCTION horsies_permits_in_use(p_now timestamptz) RETURNS TABLE (name text, running int, permits int) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
  RETURN QUERY
  SELECT coalesce(t.queue_name::text, '*'),
         (count(*) FILTER (WHERE horsies_holds_permit(t.status, t.claim_expires_at, false, p_now)))::int,
         (count(*) FILTER (WHERE horsies_holds_permit(t.status, t.claim_expires_at, true, p_now)))::int
  FROM horsies_tasks t
  WHERE t.claimed_by IS NOT NULL AND t.finished_at IS NULL
  GROUP BY GROUPING SETS ((t.queue_name), ());
END
$$;
