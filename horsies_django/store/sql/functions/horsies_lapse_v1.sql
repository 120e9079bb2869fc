-- Make claims whose lease ended claimable again. Whoever held them finds at the start that they are gone.
-- Moves CLAIMED -> PENDING. Returns how many.
-- Locks: the task rows, never waiting. Index: horsies_tasks_holding.
CREATE FUNCTION horsies_lapse_v1(p_queues text[]) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_count int;
BEGIN
  UPDATE horsies_tasks t
  SET status = 'PENDING', claimed_by = NULL, claimed_at = NULL, claim_expires_at = NULL
  WHERE t.status = 'CLAIMED' AND t.id = ANY (ARRAY(
    SELECT l.id FROM horsies_tasks l
    WHERE l.queue_name = ANY (p_queues) AND l.claimed_by IS NOT NULL AND l.finished_at IS NULL
      AND l.status = 'CLAIMED' AND l.claim_expires_at <= clock_timestamp()
    LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED));
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END
$$;
