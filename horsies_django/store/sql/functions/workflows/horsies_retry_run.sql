-- Runs the failed nodes of a run again, and the nodes that were skipped because of them; keeps what completed, and what a person
-- skipped. Waits for the lock of the run. A failed map keeps its completed elements. verdict: 'RETRIED', 'NOTHING' (no node failed),
-- 'STOPPING' (tasks are still running since a cancel), 'CHILD' (retry the parent run), or NULL if there is no such run. Of a run that was
-- compensated, the failed undos run again: else 'UNDONE' or 'UNDOING'. 'CONTINUED': retry its successor. children: runs of failed nodes,
-- for the caller to retry; a node that waits for others that run again gets a new run, because its inputs may change.
-- Nodes are joined as in horsies_propagate: to compare each row with a list of numbers would be quadratic.
-- Moves nodes FAILED, CANCELLED, EXPIRED, SKIPPED -> ADDED, then as horsies_move_run; the run -> RUNNING.
-- Locks: the row of the run, then task rows. Index: primary keys, horsies_tasks_node.
CREATE FUNCTION horsies_retry_run(p_workflow uuid, p_nested boolean, p_max_bytes int, p_channel text, p_now timestamptz,
                                  OUT verdict text, OUT children uuid[]) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz;
  v_run horsies_workflows;
  v_again bigint[];
  v_failed boolean;
  v_stopping boolean;
  v_ending boolean;
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
  SELECT m.more AND (v_run.status = 'CANCELLED' OR v_run.on_error = 'stop' AND v_run.error_code IS NOT NULL) INTO v_ending
  FROM horsies_move_run(p_workflow, horsies_take_tasks(p_workflow, NULL, v_now), 1000, p_max_bytes, p_channel, p_now) AS m;
  IF EXISTS (SELECT FROM horsies_workflows w WHERE w.id = p_workflow AND w.continued_as IS NOT NULL) THEN
    verdict := 'CONTINUED';
    RETURN;
  END IF;
  verdict := horsies_retry_undo(p_workflow);
  IF verdict IS NOT NULL THEN
    IF verdict = 'RETRIED' THEN
      PERFORM horsies_move_run(p_workflow, '{}', 1000, p_max_bytes, p_channel, p_now);
    END IF;
    RETURN;
  END IF;
  WITH RECURSIVE again (number, failed) AS (
    SELECT n.number, true FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
    UNION
    SELECT d.number, false FROM again a CROSS JOIN LATERAL (
      SELECT e.workflow_id, e.downstream FROM horsies_workflow_edges e WHERE e.workflow_id = p_workflow AND e.upstream = a.number OFFSET 0) AS e
    CROSS JOIN LATERAL (
      SELECT n.number FROM horsies_workflow_nodes n
      WHERE n.workflow_id = e.workflow_id AND n.number = e.downstream AND n.status IN ('SKIPPED', 'PENDING')
        AND n.error_code IS DISTINCT FROM 'SKIPPED_BY_HAND' OFFSET 0) AS d
  )
  SELECT coalesce(array_agg(a.number), '{}'), coalesce(bool_or(a.failed), false), coalesce(bool_or(EXISTS (
           SELECT FROM horsies_tasks t WHERE t.workflow_id = p_workflow AND t.node = a.number AND t.finished_at IS NULL)), false)
  INTO v_again, v_failed, v_stopping FROM again a;
  IF v_run.status NOT IN ('CANCELLED', 'FAILED') AND NOT v_failed THEN  -- one whose value could not be given may have no failed node
    verdict := 'NOTHING';
    RETURN;
  ELSIF v_stopping OR v_ending THEN
    verdict := 'STOPPING';
    RETURN;
  END IF;
  WITH again AS MATERIALIZED (
    SELECT p_workflow AS workflow_id, unnest(v_again) AS number
  ), had AS MATERIALIZED (
    SELECT n.workflow_id, n.number, t.id, t.node_index, t.advanced_at IS NOT NULL AS counted,
           n.kind = 'map' AND (t.status = 'COMPLETED' OR t.error_code IS NOT DISTINCT FROM 'TASK_SKIPPED') AS kept,
           n.undo IS NOT NULL AND t.status <> 'COMPLETED' AND horsies_has_begun(t.id, t.status, t.error_code) AS begun
    FROM again a JOIN horsies_workflow_nodes n ON n.workflow_id = a.workflow_id AND n.number = a.number
    LEFT JOIN horsies_tasks t ON t.workflow_id = n.workflow_id AND t.node = n.number
  ), replaced AS (
    UPDATE horsies_tasks t SET node = NULL FROM had h WHERE t.id = h.id AND NOT h.kept
  ), nodes AS MATERIALIZED (
    SELECT h.workflow_id, h.number, count(*) FILTER (WHERE h.kept AND h.counted)::int AS ok,
           jsonb_object_agg(h.node_index, h.id) FILTER (WHERE h.begun) AS begun
    FROM had h GROUP BY h.workflow_id, h.number
  )
  UPDATE horsies_workflow_nodes n
  SET status = 'ADDED', finished_at = NULL, error_code = NULL, error = NULL, due_at = CASE WHEN n.delay IS NULL THEN n.due_at END,
      items_ok = h.ok, items_bad = 0, expanded = 0, in_flight = 0, task_id = CASE WHEN n.kind = 'workflow' THEN n.task_id END,
      undo = CASE WHEN h.begun IS NULL THEN n.undo ELSE jsonb_set(n.undo, '{begun}', coalesce(n.undo -> 'begun', '{}') || h.begun) END
  FROM nodes h WHERE n.workflow_id = h.workflow_id AND n.number = h.number;
  WITH again AS MATERIALIZED (
    SELECT p_workflow AS workflow_id, unnest(v_again) AS number
  ), workflows AS MATERIALIZED (
    SELECT n.workflow_id, n.number, c.finished_at IS NOT NULL AND NOT EXISTS (
      SELECT FROM horsies_workflow_edges e JOIN horsies_workflow_nodes u ON u.workflow_id = e.workflow_id AND u.number = e.upstream
      WHERE e.workflow_id = n.workflow_id AND e.downstream = n.number AND u.status = 'ADDED') AS kept
    FROM again a JOIN horsies_workflow_nodes n ON n.workflow_id = a.workflow_id AND n.number = a.number
    LEFT JOIN horsies_workflows c ON c.id = n.task_id
    WHERE n.kind = 'workflow'
  ), decided AS (
    UPDATE horsies_workflow_nodes n SET status = CASE WHEN i.kept THEN 'ENQUEUED' ELSE 'ADDED' END, task_id = CASE WHEN i.kept THEN n.task_id END
    FROM workflows i WHERE n.workflow_id = i.workflow_id AND n.number = i.number RETURNING n.task_id
  )
  SELECT coalesce(array_agg(d.task_id) FILTER (WHERE d.task_id IS NOT NULL), '{}') INTO children FROM decided d;
  WITH again AS MATERIALIZED (
    SELECT p_workflow AS workflow_id, unnest(v_again) AS number
  ), others AS MATERIALIZED (  -- nodes that keep their status
    SELECT DISTINCT n.workflow_id, n.number
    FROM again a JOIN horsies_workflow_edges e ON e.workflow_id = a.workflow_id AND e.upstream = a.number
    JOIN horsies_workflow_nodes n ON n.workflow_id = e.workflow_id AND n.number = e.downstream AND n.status <> 'ADDED'
  ), counted AS MATERIALIZED (
    SELECT o.workflow_id, o.number, count(*) FILTER (WHERE u.finished_at IS NULL)::int AS open,
           count(*) FILTER (WHERE e.counts AND u.status = 'COMPLETED')::int AS ok,
           count(*) FILTER (WHERE e.counts AND u.finished_at IS NOT NULL AND u.status <> 'COMPLETED')::int AS bad
    FROM others o JOIN horsies_workflow_edges e ON e.workflow_id = o.workflow_id AND e.downstream = o.number
    JOIN horsies_workflow_nodes u ON u.workflow_id = e.workflow_id AND u.number = e.upstream
    GROUP BY o.workflow_id, o.number
  )
  UPDATE horsies_workflow_nodes n SET open = c.open, ok = c.ok, bad = c.bad
  FROM counted c WHERE n.workflow_id = c.workflow_id AND n.number = c.number;
  UPDATE horsies_workflows w
  SET status = 'RUNNING', finished_at = NULL, advanced_at = NULL, error_node = NULL, error_code = NULL, result = NULL
  WHERE w.id = p_workflow;
  PERFORM horsies_unhold(p_workflow, p_channel);
  PERFORM horsies_move_run(p_workflow, '{}', 1000, p_max_bytes, p_channel, p_now);
  verdict := 'RETRIED';
END
$$;
