-- Make claims whose lease ended claimable again. Whoever held them finds at the start that they are gone. Other workers, whose scans
-- may have gone by their places, look there again when they look next.
-- Moves CLAIMED -> PENDING. Returns the earliest moment since which one of them is due, NULL if there was none.
-- Locks: the task rows, never waiting. Index: horsies_tasks_holding.
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
