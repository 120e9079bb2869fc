-- Lets a node that waits take a signal. A gate takes what a person decided; a rejection fails it.
-- Moves WAITING -> COMPLETED, FAILED.
-- Locks: the row of the signal; the caller holds the lock of the run. Index: primary keys.
CREATE FUNCTION horsies_take_signal(p_workflow uuid, p_number bigint, p_signal bigint, p_now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_data jsonb;
BEGIN
  UPDATE horsies_workflow_signals s SET seen_at = coalesce(s.seen_at, p_now), used_at = p_now, node = p_number
  WHERE s.id = p_signal RETURNING s.data INTO v_data;
  UPDATE horsies_workflow_nodes n
  SET finished_at = p_now, status = CASE WHEN d.rejected THEN 'FAILED' ELSE 'COMPLETED' END, value = d.value,
      error_code = CASE WHEN d.rejected THEN 'GATE_REJECTED' END,
      error = CASE WHEN d.rejected THEN concat_ws(': ', 'rejected by ' || (v_data ->> 'by'), v_data ->> 'reason') END
  FROM (
    SELECT g.number, g.kind = 'gate' AND v_data -> 'approved' = 'false' AS rejected,
           CASE WHEN g.kind = 'signal' THEN v_data WHEN v_data -> 'approved' = 'true' THEN v_data - 'approved' END AS value
    FROM horsies_workflow_nodes g WHERE g.workflow_id = p_workflow AND g.number = p_number) AS d
  WHERE n.workflow_id = p_workflow AND n.number = d.number;
END
$$;
