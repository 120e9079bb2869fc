-- Ends a run if none of its nodes is open and it is not paused. It has failed if a node failed and no node that depends on it ran nevertheless.
-- Moves RUNNING -> COMPLETED, FAILED. Returns whether it has finished, also earlier.
-- Locks: the caller holds the lock of the run. Index: horsies_workflow_nodes_open, primary keys.
CREATE FUNCTION horsies_finish_run(p_workflow uuid, p_channel text, p_max_bytes int, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_run horsies_workflows;
  v_number bigint;
  v_name text;
  v_code text;
  v_message text;
  v_kind text;
  v_status text;
  v_result jsonb;
BEGIN
  SELECT w.* INTO v_run FROM horsies_workflows w WHERE w.id = p_workflow;
  IF v_run.finished_at IS NOT NULL THEN
    RETURN true;
  ELSIF v_run.status = 'PAUSED' OR EXISTS (SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.finished_at IS NULL) THEN
    RETURN false;
  END IF;
  IF v_run.error_node IS NOT NULL THEN
    SELECT n.number, n.name, coalesce(n.error_code, n.status) AS code, r.result #>> '{err,message}' AS message INTO v_number, v_name, v_code, v_message
    FROM horsies_workflow_nodes n CROSS JOIN LATERAL horsies_node_result(p_workflow, n.number) AS r
    WHERE n.workflow_id = p_workflow AND n.status IN ('FAILED', 'CANCELLED', 'EXPIRED') AND NOT EXISTS (
      SELECT FROM horsies_workflow_edges e JOIN horsies_workflow_nodes d ON d.workflow_id = p_workflow AND d.number = e.downstream
      WHERE e.workflow_id = p_workflow AND e.upstream = n.number AND (d.rule = 'quorum' OR d.rule = 'all' AND d.allow_failed)
        AND d.status <> 'SKIPPED')
    ORDER BY n.finished_at, n.number LIMIT 1;
  END IF;
  IF v_number IS NOT NULL THEN
    v_result := jsonb_build_object('err', jsonb_build_object(
      'error_code', 'WORKFLOW_FAILED', 'message', concat_ws(': ', 'node ' || v_name || ' failed', v_code, v_message),
      'data', jsonb_build_object('node', v_name, 'error_code', v_code), 'exception', NULL));
  ELSIF v_run.output IS NULL THEN
    v_result := '{"ok": null}';
  ELSE
    SELECT r.kind, r.status, r.result INTO v_kind, v_status, v_result FROM horsies_node_result(p_workflow, v_run.output) AS r;
    IF v_kind = 'map' AND v_status = 'COMPLETED' THEN
      BEGIN
        v_result := jsonb_build_object('ok', horsies_argument(
          p_workflow, v_run.output, 'the output', jsonb_build_object('node', v_run.output, 'as', 'list'), p_max_bytes));
      EXCEPTION WHEN SQLSTATE 'HW001' THEN
        v_result := horsies_error_result('PAYLOAD_TOO_LARGE', SQLERRM || '; handle.results() reads them one by one');
      END;
    END IF;
  END IF;
  UPDATE horsies_workflows w
  SET status = CASE WHEN v_number IS NULL THEN 'COMPLETED' ELSE 'FAILED' END, finished_at = p_now, owed_at = NULL,
      error_node = v_number, error_code = v_code, result = v_result
  WHERE w.id = p_workflow;
  PERFORM horsies_notify_finished(p_channel, ARRAY[p_workflow]);
  RETURN true;
END
$$;
