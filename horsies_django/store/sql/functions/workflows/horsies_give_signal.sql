-- Gives a signal to a node that waits for signals.
--
-- Args: p_signal is the signal; NULL for the oldest one of those that were sent before the node
-- began to wait.
-- Returns: whether the node is final now.
-- Moves: the node WAITING -> COMPLETED.
-- Locks: rows of signals; the caller holds the lock of the run.
-- Index: primary keys, horsies_signals_unused, horsies_signals_keyed.
CREATE OR REPLACE FUNCTION horsies_give_signal(
  p_workflow uuid, p_number bigint, p_signal uuid, p_now timestamptz
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_signal uuid := coalesce(p_signal, (
    SELECT s.id
    FROM horsies_workflow_nodes n
    CROSS JOIN LATERAL horsies_next_signal(p_workflow, n.signal, n.signal_key, false) AS s
    WHERE n.workflow_id = p_workflow AND n.number = p_number
  ));
BEGIN
  IF v_signal IS NULL THEN
    RETURN false;  -- a site that sends a run may not update signals
  END IF;

  WITH taken AS (
    UPDATE horsies_workflow_signals sent_signal
    SET seen_at = coalesce(sent_signal.seen_at, p_now), used_at = p_now, node = p_number
    WHERE sent_signal.id = v_signal
    RETURNING sent_signal.data
  )
  UPDATE horsies_workflow_nodes waiter
  SET status = 'COMPLETED', finished_at = p_now, value = given_signal.data
  FROM taken given_signal
  WHERE waiter.workflow_id = p_workflow AND waiter.number = p_number;

  RETURN FOUND;
END
$$;
