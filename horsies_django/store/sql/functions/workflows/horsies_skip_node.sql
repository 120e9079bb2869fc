-- Skips a node that has not begun. It waits for the lock of the run.
-- Returns: verdict: 'SKIPPED'; 'BEGUN' (its task runs, has run, or cannot be withdrawn, see
-- horsies_withdraw); 'FINISHED' (the node or the run); NULL if there is no such node.
-- Moves: the node PENDING, READY, WAITING, ENQUEUED -> SKIPPED, then as horsies_move_run; its task
-- PENDING -> (none).
-- Locks: the row of the run, then the row of the task.
CREATE OR REPLACE FUNCTION horsies_skip_node(
  p_workflow uuid, p_number bigint, p_max_bytes int, p_channel text, p_now timestamptz,
  OUT verdict text
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz;
BEGIN
  PERFORM FROM horsies_workflows w WHERE w.id = p_workflow FOR NO KEY UPDATE;
  v_now := coalesce(p_now, clock_timestamp());

  PERFORM horsies_withdraw(p_workflow, p_number, NULL);

  SELECT
    CASE
      WHEN n.finished_at IS NOT NULL THEN 'FINISHED'
      WHEN n.status = 'ENQUEUED'
        OR NOT n.is_wait AND n.items_ok + n.items_bad > 0
        OR EXISTS (
          SELECT FROM horsies_tasks t WHERE t.workflow_id = p_workflow AND t.node = p_number
        )
        THEN 'BEGUN'
      ELSE 'SKIPPED'
    END
  INTO verdict
  FROM horsies_workflow_nodes n
  WHERE n.workflow_id = p_workflow AND n.number = p_number;

  IF verdict = 'SKIPPED' THEN
    UPDATE horsies_workflow_nodes n
    SET status = 'SKIPPED',
        finished_at = v_now,
        error_code = 'SKIPPED_BY_HAND',
        error = 'skipped by hand'
    WHERE n.workflow_id = p_workflow AND n.number = p_number;

    PERFORM horsies_move_run(p_workflow, ARRAY[p_number], 1000, p_max_bytes, p_channel, p_now);
  ELSIF verdict = 'BEGUN' THEN
    -- Sends again the tasks that were withdrawn.
    PERFORM horsies_move_run(p_workflow, '{}', 1000, p_max_bytes, p_channel, p_now);
  END IF;
END
$$;
