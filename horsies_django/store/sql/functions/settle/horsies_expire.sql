-- Expires tasks that the caller has locked and found past their good_until before they started, and
-- notifies processes that wait for results. One of the tasks that were folded into one that never
-- began takes its place, see horsies_unfold.
-- Returns: p_ids.
-- Moves: PENDING, CLAIMED -> EXPIRED.
-- Locks: rows that the caller has locked; see horsies_unfold.
CREATE OR REPLACE FUNCTION horsies_expire(p_ids uuid[], p_now timestamptz, p_channel text)
RETURNS uuid[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_ordered uuid[];
BEGIN
  WITH expired AS (
    UPDATE horsies_tasks t
    SET
      status = 'EXPIRED',
      finished_at = p_now,
      error_code = 'TASK_EXPIRED',
      parked = false,
      result = horsies_error_result(
        'TASK_EXPIRED', 'the task was not started before its good_until')
    WHERE t.id = ANY (p_ids)
      AND t.finished_at IS NULL
      AND (t.claimed_by IS NULL OR t.status = 'CLAIMED')
    RETURNING t.id, t.ordered AND t.claim_generation = 0 AS folds
  )
  SELECT array_agg(e.id) FILTER (WHERE e.folds)
  INTO v_ordered
  FROM expired e;

  IF v_ordered IS NOT NULL THEN
    PERFORM horsies_unfold(v_ordered, p_now);
  END IF;
  PERFORM horsies_notify_finished(p_channel, p_ids);
  RETURN p_ids;
END
$$;
