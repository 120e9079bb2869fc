-- Advances a run after some of its tasks or child runs finished, or some of its waits ended.
-- If its parent run was paused, the run is paused first; if the parent was stopped, cancelled or
-- continued, the run is cancelled first. A run that continued as another one passes on the signals
-- whose senders had not seen its end.
-- The commit does not wait for the disk: a lost advance is found and done again, and everything
-- that follows from an advance is written after it.
--
-- Args: p_tasks and p_children are the tasks and child runs that finished. p_limit is the largest
-- number of tasks to send.
-- Returns: busy is true if another transaction holds the run; the caller tries again soon, because
-- the snapshot of the other transaction may be older than these tasks. For many, more, finished,
-- parent and halted, see horsies_move_run; halted is 'parent' if the parent run was the cause.
-- Moves: nodes ENQUEUED -> COMPLETED, FAILED, CANCELLED, SKIPPED (child runs); nodes and the run as
-- horsies_take_tasks, horsies_take_waits, horsies_move_run and horsies_control_run; WAITING ->
-- CANCELLED if the run was deleted.
-- Locks: the row of the run, skipping a locked one; then rows as horsies_take_tasks.
CREATE OR REPLACE FUNCTION horsies_advance(
  p_workflow uuid, p_tasks uuid[], p_children uuid[], p_limit int, p_max_bytes int, p_channel text,
  p_now timestamptz,
  OUT busy boolean, OUT many int, OUT more boolean, OUT finished boolean, OUT parent uuid,
  OUT halted text
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_moved bigint[];
  v_own record;
  v_verb text;
  v_waits record;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);

  SELECT
    w.status, w.parent_id, w.continued_as,
    w.finished_at IS NOT NULL AND w.advanced_at IS NOT NULL AS told
  INTO v_own
  FROM horsies_workflows w
  WHERE w.id = p_workflow
  FOR NO KEY UPDATE SKIP LOCKED;

  IF NOT FOUND THEN
    busy := EXISTS (SELECT FROM horsies_workflows w WHERE w.id = p_workflow);
    IF NOT busy THEN  -- the run was deleted by hand
      UPDATE horsies_tasks t
      SET advanced_at = v_now
      WHERE t.id = ANY (p_tasks) AND t.workflow_id = p_workflow;

      DELETE FROM horsies_workflow_signals s WHERE s.workflow_id = p_workflow;

      UPDATE horsies_workflow_nodes n
      SET status = 'CANCELLED', finished_at = v_now
      WHERE n.workflow_id = p_workflow
        AND n.status = 'WAITING'
        AND n.is_wait
        AND n.finished_at IS NULL;
    END IF;
    RETURN;
  END IF;

  busy := false;

  IF v_own.parent_id IS NOT NULL AND v_own.status IN ('RUNNING', 'PAUSED') THEN
    SELECT
      CASE
        WHEN w.status IN ('CANCELLED', 'COMPENSATING')
          OR w.continued_as IS NOT NULL
          OR w.on_error = 'stop' AND w.error_code IS NOT NULL
        THEN 'cancel'
        WHEN w.status = 'PAUSED' AND v_own.status = 'RUNNING' THEN 'pause'
      END
    INTO v_verb
    FROM horsies_workflows w
    WHERE w.id = v_own.parent_id;

    IF v_verb IS NOT NULL THEN
      PERFORM horsies_control_run(p_workflow, v_verb, p_max_bytes, p_channel, p_now);
    END IF;
  END IF;

  IF v_own.continued_as IS NOT NULL THEN
    UPDATE horsies_workflow_signals s
    SET workflow_id = v_own.continued_as
    WHERE s.workflow_id = p_workflow AND s.seen_at IS NULL;

    IF FOUND THEN
      PERFORM pg_notify(p_channel || '_new', 'advance ' || v_own.continued_as);
    END IF;
  END IF;

  v_moved := horsies_take_tasks(p_workflow, p_tasks, v_now);

  IF p_children <> '{}' THEN
    WITH ended AS (
      UPDATE horsies_workflow_nodes node
      SET
        status = CASE
          WHEN child_run.status = 'COMPLETED' AND child_run.result ? 'err'
          THEN 'SKIPPED'  -- as its output
          ELSE child_run.status
        END,
        finished_at = v_now,
        value = child_run.result -> 'ok',
        error = child_run.result #>> '{err,message}',
        error_code = CASE
          WHEN child_run.result #>> '{err,error_code}' IN ('WORKFLOW_FAILED', 'WORKFLOW_CANCELLED')
          THEN 'SUBWORKFLOW_FAILED'
          ELSE child_run.result #>> '{err,error_code}'
        END
      FROM horsies_workflows child_run
      CROSS JOIN LATERAL horsies_address(child_run.parent_id, child_run.parent_node) AS node_row
      WHERE child_run.id = ANY (p_children)
        AND child_run.finished_at IS NOT NULL
        AND node.ctid = node_row.address
        AND node.task_id = child_run.id
        AND node.status = 'ENQUEUED'
      RETURNING node.number
    )
    SELECT v_moved || array_agg(ended_node.number)
    INTO v_moved
    FROM ended ended_node;
  END IF;

  v_waits := horsies_take_waits(p_workflow, 200, v_now);

  SELECT
    m.many, m.more OR v_waits.more, m.finished, m.parent,
    CASE WHEN v_verb IS NULL THEN m.halted ELSE 'parent' END
  INTO many, more, finished, parent, halted
  FROM horsies_move_run(
    p_workflow, v_moved || v_waits.moved, p_limit, p_max_bytes, p_channel, p_now
  ) AS m;

  IF v_own.told THEN
    parent := NULL;  -- or runs that a stranger put into one another would be advanced for ever
  END IF;
END
$$;
