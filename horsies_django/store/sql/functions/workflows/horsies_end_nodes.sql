-- Ends the nodes of a run that have not started, and cancels the tasks of the others. p_callbacks: also those that run when others ended.
-- Moves nodes ADDED, PENDING, READY, WAITING -> CANCELLED; tasks as horsies_cancel. Returns the nodes that are final now.
-- Locks: task rows, in the order of their ids; the caller holds the lock of the run. Index: horsies_workflow_nodes_open, horsies_tasks_node.
CREATE FUNCTION horsies_end_nodes(p_workflow uuid, p_callbacks boolean, p_reason text, p_channel text, p_now timestamptz) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_moved bigint[];
BEGIN
  WITH ended AS (
    UPDATE horsies_workflow_nodes n
    SET status = 'CANCELLED', finished_at = p_now, error_code = 'WORKFLOW_CANCELLED', error = p_reason
    WHERE n.workflow_id = p_workflow AND n.finished_at IS NULL AND n.status IN ('ADDED', 'PENDING', 'READY', 'WAITING')
      AND (p_callbacks OR n.rule NOT IN ('failed', 'finished'))
    RETURNING n.number
  )
  SELECT coalesce(array_agg(e.number), '{}') INTO v_moved FROM ended e;
  PERFORM horsies_cancel(
    ARRAY(SELECT t.id FROM horsies_tasks t WHERE t.workflow_id = p_workflow AND t.finished_at IS NULL), false, p_channel);
  RETURN v_moved || horsies_take_tasks(p_workflow, NULL, p_now);
END
$$;
