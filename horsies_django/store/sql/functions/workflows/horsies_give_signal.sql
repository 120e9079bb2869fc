-- Gives a signal to a node that waits for signals, NULL: what was sent before it began to wait, the oldest first. Returns whether the node is
-- final now.
-- Moves WAITING -> COMPLETED.
-- Locks: rows of signals; the caller holds the lock of the run. Index: primary keys, horsies_signals_unused, horsies_signals_keyed.
CREATE OR REPLACE FUNCTION horsies_give_signal(p_workflow uuid, p_number bigint, p_signal uuid, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_signal uuid := p_signal;
BEGIN
  IF v_signal IS NULL THEN
    SELECT s.id INTO v_signal FROM horsies_workflow_nodes n CROSS JOIN LATERAL horsies_next_signal(p_workflow, n.signal, n.signal_key, false) AS s
    WHERE n.workflow_id = p_workflow AND n.number = p_number;
  END IF;
  IF v_signal IS NULL THEN
    RETURN false;
  END IF;
  PERFORM horsies_take_signal(p_workflow, p_number, v_signal, p_now);
  RETURN true;
END
$$;
