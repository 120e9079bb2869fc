-- Starts the run of a node that is a workflow: creates it with the inputs' values, and sends its first tasks.
-- No other transaction knows the new run yet, so this does not lock two runs. Raises HW001 as horsies_node_kwargs does.
-- Moves its node READY -> ENQUEUED; the new run (none) -> RUNNING.
-- Locks: none but the new rows; the caller holds the lock of the node's run. Index: primary keys.
CREATE FUNCTION horsies_start_child(p_run horsies_workflows, p_number bigint, p_max_bytes int, p_channel text,
                                     p_now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_node horsies_workflow_nodes;
  v_values jsonb;
  v_id uuid := horsies_uuid7(0);
BEGIN
  SELECT n.* INTO v_node FROM horsies_workflow_nodes n WHERE n.workflow_id = p_run.id AND n.number = p_number;
  v_values := horsies_node_kwargs(v_node, p_max_bytes);
  PERFORM horsies_send_run(v_id, v_node.graph - 'key'::text, v_node.graph -> 'nodes', v_values, p_run.id, p_number, 1000, p_max_bytes,
                           p_channel, p_now);
  UPDATE horsies_workflow_nodes n SET status = 'ENQUEUED', task_id = v_id WHERE n.workflow_id = p_run.id AND n.number = p_number;
END
$$;
