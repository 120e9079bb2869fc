-- Pauses, resumes or cancels a run; waits for its lock.
-- Nothing changes a run that is COMPENSATING.
--
-- Args: p_verb is 'pause', 'resume' or 'cancel'.
-- Returns: the status of the run before and after; NULL if there is no such run.
-- Moves: the run RUNNING -> PAUSED, and withdraws its tasks; PAUSED -> RUNNING; RUNNING, PAUSED ->
-- CANCELLED, with its nodes and tasks, or COMPENSATING if nodes that have an undo may have begun.
-- Locks: the row of the run, then task rows.
CREATE OR REPLACE FUNCTION horsies_control_run(
  p_workflow uuid, p_verb text, p_max_bytes int, p_channel text, p_now timestamptz,
  OUT before text, OUT after text
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz;
BEGIN
  SELECT w.status
  INTO before
  FROM horsies_workflows w
  WHERE w.id = p_workflow
  FOR NO KEY UPDATE;

  v_now := coalesce(p_now, clock_timestamp());
  after := before;

  IF p_verb = 'pause' AND before = 'RUNNING' THEN
    after := 'PAUSED';

    UPDATE horsies_workflows w
    SET status = after, owed_at = v_now
    WHERE w.id = p_workflow;

    PERFORM horsies_move_run(p_workflow, '{}', 1000, p_max_bytes, p_channel, p_now);

  ELSIF p_verb = 'resume' AND before = 'PAUSED' THEN
    after := 'RUNNING';

    UPDATE horsies_workflows w
    SET
      status = after,
      resuming = true,
      error_code = CASE WHEN w.on_error = 'stop' THEN w.error_code END
    WHERE w.id = p_workflow;

    PERFORM horsies_move_run(
      p_workflow, horsies_take_tasks(p_workflow, NULL, v_now),
      1000, p_max_bytes, p_channel, p_now);

  ELSIF p_verb = 'cancel' AND before IN ('RUNNING', 'PAUSED') THEN
    after := CASE
      WHEN EXISTS (
        SELECT FROM horsies_workflow_nodes n
        WHERE n.workflow_id = p_workflow
          AND n.undo IS NOT NULL
          AND (
            n.undo ? 'begun'
            OR EXISTS (
              SELECT FROM horsies_tasks t
              WHERE t.workflow_id = p_workflow AND t.node = n.number
            )
          )
      ) THEN 'COMPENSATING'
      ELSE 'CANCELLED'
    END;

    UPDATE horsies_workflows w
    SET
      status = after,
      finished_at = CASE WHEN after = 'CANCELLED' THEN v_now END,
      owed_at = v_now,
      retrying = NULL,
      error_code = 'WORKFLOW_CANCELLED',
      result = horsies_error_result('WORKFLOW_CANCELLED', 'the workflow was cancelled')
    WHERE w.id = p_workflow;

    PERFORM horsies_move_run(p_workflow, '{}', 1000, p_max_bytes, p_channel, p_now);

    IF after = 'CANCELLED' THEN
      PERFORM horsies_notify_finished(p_channel, ARRAY[p_workflow]);
    ELSE
      SELECT w.status INTO after FROM horsies_workflows w WHERE w.id = p_workflow;
    END IF;
  END IF;
END
$$;
