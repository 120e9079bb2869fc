-- Runs the failed nodes of a run again, and the nodes that were skipped because of them; keeps what completed. Waits for the lock of the
-- run. A failed map keeps its completed elements. verdict: 'RETRIED', 'NOTHING' (no node failed), 'STOPPING' (tasks are still running
-- since a cancel), 'CHILD' (retry the parent run), or NULL if there is no such run. Of a run that was compensated, the failed undos run
-- again: else 'UNDONE' or 'UNDOING'. 'CONTINUED': retry its successor. children: runs of failed nodes, for the caller to retry; a node that waits for others that run again
-- gets a new run, because its inputs may change.
-- Moves nodes FAILED, CANCELLED, EXPIRED, SKIPPED -> ADDED, then as horsies_move_run; the run -> RUNNING.
-- Locks: the row of the run, then task rows. Index: primary keys, horsies_tasks_node.
CREATE FUNCTION horsies_retry_run(p_workflow uuid, p_nested boolean, p_max_bytes int, p_channel text, p_now timestamptz,
                                  OUT verdict text, OUT children uuid[]) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz;
  v_run horsies_workflows;
  v_again bigint[];
BEGIN
  SELECT w.* INTO v_run FROM horsies_workflows w WHERE w.id = p_workflow FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  v_now := coalesce(p_now, clock_timestamp());
  children := '{}';
  IF v_run.parent_id IS NOT NULL AND v_run.finished_at IS NOT NULL AND NOT p_nested THEN
    verdict := 'CHILD';
    RETURN;
  END IF;
  PERFORM horsies_move_run(p_workflow, horsies_take_tasks(p_workflow, NULL, v_now), 5000, p_max_bytes, p_channel, p_now);
  IF EXISTS (SELECT FROM horsies_workflows w WHERE w.id = p_workflow AND w.continued_as IS NOT NULL) THEN
    verdict := 'CONTINUED';
    RETURN;
  END IF;
  verdict := horsies_retry_undo(p_workflow);
  IF verdict IS NOT NULL THEN
    IF verdict = 'RETRIED' THEN
      PERFORM horsies_move_run(p_workflow, '{}', 5000, p_max_bytes, p_channel, p_now);
    END IF;
    RETURN;
  END IF;
  WITH RECURSIVE again (number) AS (
    SELECT n.number FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
    UNION
    SELECT n.number FROM again a
    JOIN horsies_workflow_edges e ON e.workflow_id = p_workflow AND e.upstream = a.number
    JOIN horsies_workflow_nodes n ON n.workflow_id = p_workflow AND n.number = e.downstream
    WHERE n.status IN ('SKIPPED', 'PENDING')
  )
  SELECT coalesce(array_agg(a.number), '{}') INTO v_again FROM again a;
  IF v_run.status <> 'CANCELLED' AND NOT EXISTS (
    SELECT FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_workflow AND n.number = ANY (v_again) AND n.status IN ('FAILED', 'CANCELLED', 'EXPIRED')) THEN
    verdict := 'NOTHING';
    RETURN;
  ELSIF EXISTS (SELECT FROM horsies_tasks t WHERE t.workflow_id = p_workflow AND t.node = ANY (v_again) AND t.finished_at IS NULL) THEN
    verdict := 'STOPPING';
    RETURN;
  END IF;
  children := ARRAY(
    SELECT c.id FROM horsies_workflow_nodes n JOIN horsies_workflows c ON c.id = n.task_id
    WHERE n.workflow_id = p_workflow AND n.number = ANY (v_again) AND n.kind = 'workflow' AND c.finished_at IS NOT NULL AND NOT EXISTS (
      SELECT FROM horsies_workflow_edges e
      WHERE e.workflow_id = p_workflow AND e.downstream = n.number AND e.upstream = ANY (v_again)));
  UPDATE horsies_workflow_nodes n SET undo = jsonb_set(n.undo, '{begun}', coalesce(n.undo -> 'begun', '{}') || b.tasks)
  FROM (SELECT t.node, jsonb_object_agg(t.node_index, t.id) AS tasks FROM horsies_tasks t
        WHERE t.workflow_id = p_workflow AND t.node = ANY (v_again) AND t.status <> 'COMPLETED'
          AND horsies_has_begun(t.id, t.status, t.error_code) GROUP BY t.node) AS b
  WHERE n.workflow_id = p_workflow AND n.number = b.node AND n.undo IS NOT NULL;
  UPDATE horsies_tasks t SET node = NULL
  FROM horsies_workflow_nodes n
  WHERE t.workflow_id = p_workflow AND t.node = ANY (v_again) AND n.workflow_id = p_workflow AND n.number = t.node
    AND (n.kind <> 'map' OR t.status <> 'COMPLETED' AND t.error_code IS DISTINCT FROM 'TASK_SKIPPED');
  UPDATE horsies_workflow_nodes n
  SET status = CASE WHEN n.kind = 'workflow' AND n.task_id = ANY (children) THEN 'ENQUEUED' ELSE 'ADDED' END,
      finished_at = NULL, error_code = NULL, error = NULL, due_at = CASE WHEN n.delay IS NULL THEN n.due_at END, items_bad = 0, expanded = 0, in_flight = 0,
      items_ok = CASE WHEN n.kind = 'map' THEN (
        SELECT count(*) FROM horsies_tasks t WHERE t.workflow_id = p_workflow AND t.node = n.number AND t.advanced_at IS NOT NULL)::int ELSE 0 END,
      task_id = CASE WHEN n.kind = 'workflow' AND n.task_id = ANY (children) THEN n.task_id END
  WHERE n.workflow_id = p_workflow AND n.number = ANY (v_again);
  UPDATE horsies_workflow_nodes n SET open = c.open, ok = c.ok, bad = c.bad  -- of nodes that keep their status
  FROM (
    SELECT e.downstream AS number, count(*) FILTER (WHERE u.finished_at IS NULL)::int AS open,
           count(*) FILTER (WHERE u.status = 'COMPLETED')::int AS ok,
           count(*) FILTER (WHERE u.finished_at IS NOT NULL AND u.status <> 'COMPLETED')::int AS bad
    FROM horsies_workflow_edges e JOIN horsies_workflow_nodes u ON u.workflow_id = p_workflow AND u.number = e.upstream
    WHERE e.workflow_id = p_workflow AND e.downstream IN (
      SELECT x.downstream FROM horsies_workflow_edges x WHERE x.workflow_id = p_workflow AND x.upstream = ANY (v_again))
    GROUP BY e.downstream
  ) AS c
  WHERE n.workflow_id = p_workflow AND n.number = c.number AND n.status <> 'ADDED';
  UPDATE horsies_workflows w
  SET status = 'RUNNING', finished_at = NULL, advanced_at = NULL, error_node = NULL, error_code = NULL, result = NULL
  WHERE w.id = p_workflow;
  PERFORM horsies_unhold(p_workflow, p_channel);
  PERFORM horsies_move_run(p_workflow, '{}', 5000, p_max_bytes, p_channel, p_now);
  verdict := 'RETRIED';
END
$$;
