-- Makes claims whose lease ended claimable again. Their old holder finds out when it tries to start them. Notifies other workers, whose
-- next scans then include these tasks.
-- Moves CLAIMED -> PENDING. Returns the earliest due time of these tasks, NULL if there are none.
-- Locks: the task rows, skipping locked ones. Index: horsies_tasks_holding.
CREATE FUNCTION horsies_release_expired_leases(p_queues text[], p_channel text) RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_ids uuid[];
BEGIN
  WITH lapsed AS (
    UPDATE horsies_tasks t
    SET status = 'PENDING', claimed_by = NULL, claimed_at = NULL, claim_expires_at = NULL
    WHERE t.status = 'CLAIMED' AND t.id = ANY (ARRAY(
      SELECT l.id FROM horsies_tasks l
      WHERE l.queue_name = ANY (p_queues) AND l.claimed_by IS NOT NULL AND l.finished_at IS NULL
        AND l.status = 'CLAIMED' AND l.claim_expires_at <= clock_timestamp()
      LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING t.id
  )
  SELECT array_agg(lapsed.id) INTO v_ids FROM lapsed;
  RETURN horsies_notify_requeued(p_channel, v_ids);
END
$$;
