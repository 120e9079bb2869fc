-- Finds the work of runs that is left to be advanced: finished tasks, finished child runs, and runs
-- in which something is left to be done (owed_at), with ADDED nodes, new signals, or waits whose
-- time is over.
-- Args: p_many is the maximum of each kind. Tasks that finished more than p_age ago are left out;
-- NULL leaves out none. With a pinned xmin, the index keeps an entry for each task that was ever
-- advanced, so reading all of it takes long.
-- Index: horsies_tasks_unadvanced, horsies_workflows_untold, horsies_workflows_owed,
-- horsies_workflow_nodes_added, horsies_workflow_nodes_due, horsies_signals_unseen.
CREATE OR REPLACE FUNCTION horsies_owed(
  p_age interval, p_many int, p_now timestamptz DEFAULT NULL
) RETURNS TABLE (workflow uuid, task uuid, child uuid) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_since timestamptz := coalesce(clock_timestamp() - p_age, '-infinity');
  v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
  RETURN QUERY
  (
    SELECT finished_task.workflow_id, finished_task.id, NULL::uuid
    FROM horsies_tasks finished_task
    WHERE finished_task.workflow_id IS NOT NULL
      AND finished_task.finished_at IS NOT NULL
      AND finished_task.advanced_at IS NULL
      AND finished_task.finished_at >= v_since
    ORDER BY finished_task.finished_at
    LIMIT p_many
  )
  UNION ALL
  (
    SELECT child_run.parent_id, NULL, child_run.id
    FROM horsies_workflows child_run
    WHERE child_run.finished_at IS NOT NULL
      AND child_run.parent_id IS NOT NULL
      AND child_run.advanced_at IS NULL
    LIMIT p_many
  )
  UNION ALL
  (
    SELECT run.id, NULL, NULL
    FROM horsies_workflows run
    WHERE run.owed_at IS NOT NULL
    ORDER BY run.owed_at
    LIMIT p_many
  )
  UNION ALL
  (
    SELECT DISTINCT added_node.workflow_id, NULL::uuid, NULL::uuid
    FROM horsies_workflow_nodes added_node
    WHERE added_node.status = 'ADDED'
    LIMIT p_many
  )
  UNION ALL
  (
    SELECT DISTINCT unseen_signal.workflow_id, NULL::uuid, NULL::uuid
    FROM horsies_workflow_signals unseen_signal
    WHERE unseen_signal.seen_at IS NULL
    LIMIT p_many
  )
  UNION ALL
  (
    SELECT waiter.workflow_id, NULL, NULL
    FROM horsies_workflow_nodes waiter
    WHERE waiter.status = 'WAITING' AND waiter.finished_at IS NULL AND waiter.due_at <= v_now
    ORDER BY waiter.due_at
    LIMIT p_many
  );
END
$$;
