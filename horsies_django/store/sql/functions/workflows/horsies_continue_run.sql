-- Ends a run and begins its successor, from the graph in a node: both or neither.
-- The key of the run, and the hash of the graph that was sent with it, move to the successor, and
-- so do signals that no node took. No other transaction can see the new run yet, so this does not
-- lock two runs. horsies_move_run ends the other nodes afterwards.
-- Raises HW001 as horsies_node_kwargs does, or if another run has the name and the key.
--
-- Moves: the run RUNNING -> COMPLETED; its node p_node READY -> COMPLETED; the successor (none) ->
-- RUNNING.
-- Locks: rows of signals; the caller holds the lock of the run.
-- Index: primary keys, horsies_signals_unused.
CREATE OR REPLACE FUNCTION horsies_continue_run(
  p_run horsies_workflows, p_node horsies_workflow_nodes, p_max_bytes int, p_channel text,
  p_now timestamptz
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_values jsonb := horsies_node_kwargs(p_node, p_max_bytes);
  v_id uuid := horsies_uuid7(0);
BEGIN
  UPDATE horsies_workflow_nodes n
  SET status = 'COMPLETED', finished_at = v_now, task_id = v_id
  WHERE n.workflow_id = p_run.id AND n.number = p_node.number;

  UPDATE horsies_workflows w
  SET
    status = 'COMPLETED', finished_at = v_now, owed_at = v_now,
    error_node = NULL, error_code = NULL,
    result = jsonb_build_object('ok', NULL, 'continued_as', v_id),
    key = NULL, graph_hash = NULL, continued_as = v_id
  WHERE w.id = p_run.id;

  UPDATE horsies_workflow_signals s
  SET workflow_id = v_id
  WHERE s.workflow_id = p_run.id AND s.used_at IS NULL;

  IF NOT (
    SELECT c.created
    FROM horsies_send_run(
      v_id,
      p_node.graph || jsonb_build_object('key', p_run.key, 'hash', p_run.graph_hash),
      p_node.graph -> 'nodes',
      v_values, NULL, NULL, p_run.id, 1000, p_max_bytes, p_channel, p_now
    ) AS c
  ) THEN
    RAISE EXCEPTION USING
      ERRCODE = 'HW001', DETAIL = 'NODE_NOT_SENT',
      MESSAGE = format(
        'there is another run of %s with the key %s', p_node.graph ->> 'name', p_run.key);
  END IF;

  PERFORM horsies_notify_finished(p_channel, ARRAY[p_run.id]);
END
$$;
