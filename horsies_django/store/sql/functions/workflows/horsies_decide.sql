-- Writes the decision about one opening of a gate; waits for the lock of its run.
-- Timeouts end gates under this lock, too, so the first one counts.
--
-- Args: p_opening is the opening that was decided about. p_permission is the permission that was
-- checked.
-- Returns: whether the decision counts; false if the gate does not wait, if it waits anew since
-- p_opening, if it needs another permission than p_permission, or if its time is over.
-- Moves: the node WAITING -> COMPLETED, FAILED, then as horsies_move_run.
-- Locks: the row of the run.
CREATE OR REPLACE FUNCTION horsies_decide(
  p_workflow uuid, p_number bigint, p_opening int, p_permission text,
  p_approved boolean, p_by text, p_reason text,
  p_max_bytes int, p_channel text, p_now timestamptz
) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz;
BEGIN
  PERFORM FROM horsies_workflows w WHERE w.id = p_workflow FOR NO KEY UPDATE;
  v_now := coalesce(p_now, clock_timestamp());

  UPDATE horsies_workflow_nodes n
  SET
    finished_at = v_now,
    decided_by = p_by,
    status = CASE WHEN p_approved THEN 'COMPLETED' ELSE 'FAILED' END,
    value = CASE WHEN p_approved THEN jsonb_build_object('by', p_by, 'reason', p_reason) END,
    error_code = CASE WHEN NOT p_approved THEN 'GATE_REJECTED' END,
    error = CASE WHEN NOT p_approved THEN concat_ws(': ', 'rejected by ' || p_by, p_reason) END
  WHERE n.workflow_id = p_workflow
    AND n.number = p_number
    AND n.kind = 'gate'
    AND n.status = 'WAITING'
    AND n.opening = p_opening
    AND n.permission IS NOT DISTINCT FROM p_permission
    AND (n.due_at IS NULL OR n.due_at > v_now);

  IF NOT FOUND THEN
    RETURN false;
  END IF;

  PERFORM horsies_move_run(p_workflow, ARRAY[p_number], 1000, p_max_bytes, p_channel, p_now);
  RETURN true;
END
$$;
