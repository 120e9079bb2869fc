-- Lets ready waits of a run begin, p_many at most. Those for signals take what was sent early, the oldest first.
-- Moves READY -> WAITING, COMPLETED. moved: the nodes that are final now. more: there may be other ready waits.
-- Locks: as horsies_give_signal; the caller holds the lock of the run. Index: horsies_workflow_nodes_waits, primary keys.
CREATE OR REPLACE FUNCTION horsies_begin_waits(p_workflow uuid, p_many int, p_now timestamptz, OUT moved bigint[], OUT more boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_ready bigint[];
  v_number bigint;
  v_signals boolean;
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
    RETURNING n.signal IS NOT NULL AND n.kind <> 'gate' INTO v_signals;
    IF v_signals THEN
      IF horsies_give_signal(p_workflow, v_number, NULL, p_now) THEN
        moved := moved || v_number;
      END IF;
    END IF;
  END LOOP;
END
$$;
