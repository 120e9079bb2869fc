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
    SELECT t.workflow_id, t.id, NULL::uuid
    FROM horsies_tasks t
    WHERE t.workflow_id IS NOT NULL
      AND t.finished_at IS NOT NULL
      AND t.advanced_at IS NULL
      AND t.finished_at >= v_since
    ORDER BY t.finished_at
    LIMIT p_many
  )
  UNION ALL
  (
    SELECT w.parent_id, NULL, w.id
    FROM horsies_workflows w
    WHERE w.finished_at IS NOT NULL AND w.parent_id IS NOT NULL AND w.advanced_at IS NULL
    LIMIT p_many
  )
  UNION ALL
  (
    SELECT w.id, NULL, NULL
    FROM horsies_workflows w
    WHERE w.owed_at IS NOT NULL
    ORDER BY w.owed_at
    LIMIT p_many
  )
  UNION ALL
  (
    SELECT DISTINCT n.workflow_id, NULL::uuid, NULL::uuid
    FROM horsies_workflow_nodes n
    WHERE n.status = 'ADDED'
    LIMIT p_many
  )
  UNION ALL
  (
    SELECT DISTINCT s.workflow_id, NULL::uuid, NULL::uuid
    FROM horsies_workflow_signals s
    WHERE s.seen_at IS NULL
    LIMIT p_many
  )
  UNION ALL
  (
    SELECT n.workflow_id, NULL, NULL
    FROM horsies_workflow_nodes n
    WHERE n.status = 'WAITING' AND n.finished_at IS NULL AND n.due_at <= v_now
    ORDER BY n.due_at
    LIMIT p_many
  );
END
$$;
