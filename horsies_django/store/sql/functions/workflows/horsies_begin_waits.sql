-- Lets ready timers, signals and gates of a run wait, p_many at most. Each takes the oldest signal that was sent early and that it waits for.
-- Moves READY -> WAITING, COMPLETED. moved: the nodes that are final now. more: there may be other ready waits.
-- Locks: rows of signals; the caller holds the lock of the run.
-- Index: horsies_workflow_nodes_waits, horsies_signals_unused, horsies_signals_keyed, primary keys.
CREATE OR REPLACE FUNCTION horsies_begin_waits(p_workflow uuid, p_many int, p_now timestamptz, OUT moved bigint[], OUT more boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_ready bigint[];
  v_number bigint;
  v_node record;
  v_signal uuid;
BEGIN
  moved := '{}';
  v_ready := ARRAY(
    SELECT n.number FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_workflow AND n.status = 'READY' AND n.is_wait AND n.finished_at IS NULL LIMIT p_many);
  more := cardinality(v_ready) = p_many;
  FOR v_number IN SELECT unnest(v_ready) ORDER BY 1 LOOP
    UPDATE horsies_workflow_nodes n
    SET status = 'WAITING', due_at = coalesce(n.due_at, p_now + n.delay), opening = n.opening + 1, decided_by = NULL
    WHERE n.workflow_id = p_workflow AND n.number = v_number
    RETURNING n.kind, n.signal, n.signal_key INTO v_node;
    IF v_node.kind = 'signal' THEN
      v_signal := (SELECT s.id FROM horsies_next_signal(p_workflow, v_node.signal, v_node.signal_key, false) AS s);
      IF v_signal IS NOT NULL THEN
        PERFORM horsies_take_signal(p_workflow, v_number, v_signal, p_now);
        moved := moved || v_number;
      END IF;
    END IF;
  END LOOP;
END
$$;
