-- Counts for each queue the running tasks, and the permits that running and claimed tasks hold.
-- Returns: a row for each queue with tasks in flight, and '*' with the total.
-- Index: horsies_tasks_holding, which has an entry per task in flight.
CREATE OR REPLACE FUNCTION horsies_permits_in_use(p_now timestamptz)
RETURNS TABLE (name text, running int, permits int) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
  RETURN QUERY
  SELECT
    coalesce(t.queue_name::text, '*'),
    (
      count(*) FILTER (WHERE horsies_holds_permit(t.status, t.claim_expires_at, false, p_now))
    )::int,
    (
      count(*) FILTER (WHERE horsies_holds_permit(t.status, t.claim_expires_at, true, p_now))
    )::int
  FROM horsies_tasks t
  WHERE t.claimed_by IS NOT NULL AND t.finished_at IS NULL
  GROUP BY GROUPING SETS ((t.queue_name), ());
END
$$;
