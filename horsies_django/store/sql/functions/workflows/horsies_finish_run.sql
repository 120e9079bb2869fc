-- Ends a run if none of its nodes is open, and it is neither paused nor retried.
-- A run has failed if a node failed and no node that depends on it ran nevertheless, or if the
-- value of the run cannot be given; for the latter, nothing is undone. If its output was skipped,
-- its result is the error that says so.
-- A run that failed, or was cancelled, is compensated before it ends if nodes with an undo have
-- begun; for that, none of its tasks may run. Then its result is the same with the number of undone
-- nodes, or COMPENSATION_FAILED with the nodes that were not undone.
--
-- Returns: 'FINISHED', also if the run had finished before; 'UNDOING' if its undo nodes were added
-- just now; otherwise 'OPEN'.
-- Moves: the run RUNNING -> COMPLETED, FAILED, COMPENSATING; COMPENSATING -> FAILED, CANCELLED.
-- Locks: none; the caller holds the lock of the run.
-- Index: horsies_workflow_nodes_open, horsies_tasks_node, primary keys.
CREATE OR REPLACE FUNCTION horsies_finish_run(
  p_workflow uuid, p_channel text, p_max_bytes int, p_now timestamptz
) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_run horsies_workflows;
  v_number bigint;
  v_name text;
  v_code text;
  v_output record;
  v_undos record;
  v_status text := 'COMPLETED';
  v_result jsonb;
BEGIN
  SELECT w.* INTO v_run FROM horsies_workflows w WHERE w.id = p_workflow;

  IF v_run.finished_at IS NOT NULL THEN
    RETURN 'FINISHED';
  ELSIF v_run.status = 'PAUSED'
    OR v_run.retrying IS NOT NULL
    OR EXISTS (
      SELECT FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_workflow AND n.finished_at IS NULL
    )
    OR EXISTS (  -- a retry had reached them
      SELECT FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_workflow AND n.status = 'ADDED'
    )
  THEN
    RETURN 'OPEN';
  END IF;

  IF v_run.status = 'COMPENSATING' THEN
    v_number := v_run.error_node;
    v_code := v_run.error_code;
    v_result := v_run.result;
    v_status := CASE v_result #>> '{err,error_code}'
      WHEN 'WORKFLOW_CANCELLED' THEN 'CANCELLED'
      ELSE 'FAILED'
    END;
  ELSIF v_run.error_node IS NOT NULL THEN
    SELECT n.number, n.name, n.code
    INTO v_number, v_name, v_code
    FROM (
      SELECT f.number, f.name, coalesce(f.error_code, f.status) AS code
      FROM horsies_workflow_nodes f  -- mostly this one
      WHERE f.workflow_id = p_workflow
        AND f.number = v_run.error_node
        AND f.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
      UNION ALL
      (
        SELECT f.number, f.name, coalesce(f.error_code, f.status)
        FROM horsies_workflow_nodes f
        WHERE f.workflow_id = p_workflow AND f.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
        ORDER BY f.finished_at, f.number
      )
    ) AS n
    WHERE NOT EXISTS (
      SELECT FROM horsies_downstream(p_workflow, n.number) AS d
      WHERE (d.rule = 'quorum' OR d.rule = 'all' AND d.allow_failed) AND d.status <> 'SKIPPED'
    )
    LIMIT 1;

    IF FOUND THEN
      v_status := 'FAILED';

      SELECT
        jsonb_set(
          horsies_error_result(
            'WORKFLOW_FAILED',
            concat_ws(
              ': ', 'node ' || v_name || ' failed', v_code, r.result #>> '{err,message}')),
          '{err,data}',
          jsonb_build_object('node', v_name, 'error_code', v_code))
      INTO v_result
      FROM horsies_node_result(p_workflow, v_number) AS r;
    END IF;
  END IF;

  IF v_status IN ('FAILED', 'CANCELLED') AND EXISTS (
    SELECT FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_workflow AND n.undo IS NOT NULL
  ) THEN
    IF EXISTS (
      SELECT FROM horsies_tasks t
      WHERE t.workflow_id = p_workflow AND t.finished_at IS NULL
    ) THEN
      RETURN 'OPEN';  -- of a map that was ended, or could not be expanded
    ELSIF NOT EXISTS (
      SELECT FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_workflow AND n.kind = 'undo'
    ) THEN
      IF horsies_begin_undo(p_workflow) > 0 THEN
        UPDATE horsies_workflows w
        SET
          status = 'COMPENSATING',
          error_node = v_number,
          error_code = v_code,
          result = v_result
        WHERE w.id = p_workflow;

        RETURN 'UNDOING';
      END IF;
    ELSE
      SELECT
        jsonb_strip_nulls(
          jsonb_build_object(
            'node', v_result #> '{err,data,node}',
            'error_code',
            coalesce(v_result #> '{err,data,error_code}', v_result #> '{err,error_code}')))
        || jsonb_build_object('undone', count(*) FILTER (WHERE u.status = 'COMPLETED')) AS data,
        jsonb_agg(
          jsonb_build_object('node', n.name, 'error_code', coalesce(u.error_code, u.status))
          ORDER BY u.finished_at, u.number
        ) FILTER (WHERE u.status IN ('FAILED', 'CANCELLED', 'EXPIRED')) AS failed,
        string_agg(n.name, ', ' ORDER BY u.finished_at, u.number)
          FILTER (WHERE u.status IN ('FAILED', 'CANCELLED', 'EXPIRED')) AS names
      INTO v_undos
      FROM horsies_workflow_nodes u
      CROSS JOIN LATERAL (
        SELECT n.name
        FROM horsies_workflow_nodes n
        WHERE n.workflow_id = p_workflow AND n.number = u.undoes
        OFFSET 0
      ) AS n
      WHERE u.workflow_id = p_workflow AND u.kind = 'undo';

      IF v_undos.failed IS NOT NULL THEN
        v_status := 'FAILED';
        v_code := 'COMPENSATION_FAILED';
        v_undos.data := v_undos.data
          || jsonb_build_object('not_undone', v_undos.failed, 'cause', v_result -> 'err');
        v_result := horsies_error_result(
          v_code,
          left(
            concat('not undone: ', v_undos.names, '; ', v_result #>> '{err,message}'),
            10000));
      END IF;
      v_result := jsonb_set(v_result, '{err,data}', v_undos.data);
    END IF;
  END IF;

  IF v_status = 'COMPLETED' AND v_run.output IS NULL THEN
    v_result := '{"ok": null}';
  ELSIF v_status = 'COMPLETED' THEN
    SELECT r.* INTO v_output FROM horsies_node_result(p_workflow, v_run.output) AS r;
    v_result := v_output.result;

    IF v_output.kind = 'map' AND v_output.status = 'COMPLETED' THEN
      BEGIN
        v_result := jsonb_build_object(
          'ok',
          horsies_argument(
            p_workflow, NULL, 'the value of the run',
            jsonb_build_object('node', v_run.output, 'as', 'list'), p_max_bytes));
      EXCEPTION WHEN SQLSTATE 'HW001' THEN
        GET STACKED DIAGNOSTICS v_code = PG_EXCEPTION_DETAIL;
        v_result := horsies_error_result(v_code, SQLERRM);
      END;
    END IF;

    IF v_result ? 'err' AND v_output.status <> 'SKIPPED' THEN
      v_status := 'FAILED';
      v_number := v_run.output;
      v_code := v_result #>> '{err,error_code}';
    END IF;
  END IF;

  UPDATE horsies_workflows w
  SET
    status = v_status, finished_at = p_now, owed_at = NULL,
    error_node = v_number, error_code = v_code, result = v_result
  WHERE w.id = p_workflow;

  PERFORM horsies_notify_finished(p_channel, ARRAY[p_workflow]);
  RETURN 'FINISHED';
END
$$;
