-- Returns how many more tasks may be in flight in the whole cluster.
-- Locks: none; exact only under the cluster's advisory lock. Index: horsies_tasks_holding.
CREATE FUNCTION horsies_remaining_cluster_capacity(p_cap int, p_now timestamptz) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN greatest(0, p_cap - (
    SELECT count(*) FROM horsies_tasks t
    WHERE t.claimed_by IS NOT NULL AND t.finished_at IS NULL AND horsies_holds_permit(t.status, t.claim_expires_at, true, p_now)));
END
$$;
