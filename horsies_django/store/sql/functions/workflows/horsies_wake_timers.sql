-- Ends the timers of runs whose time is over and sends the tasks that follow, in a few statements for all of them. Does so only for runs in
-- which nothing else has to be decided: timers that ended lead to tasks without conditions that need all of their upstream nodes, p_many
-- at most, and no limit or parent run matters. horsies_advance has to do the same for the others. Returns the runs that it advanced.
-- Moves timers WAITING -> COMPLETED; tasks as nodes PENDING -> READY, then as horsies_send_all.
-- Locks: none but the new rows; the caller holds the locks of the runs.
-- Index: horsies_workflow_nodes_waits, primary keys.
CREATE FUNCTION horsies_wake_timers(p_runs uuid[], p_many int, p_max_bytes int, p_now timestamptz) RETURNS uuid[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_runs uuid[];
  v_workflows uuid[];
  v_numbers bigint[];
BEGIN
  v_runs := ARRAY(
    SELECT w.id FROM horsies_workflows w
    JOIN horsies_workflow_nodes t ON t.workflow_id = w.id AND t.status = 'WAITING' AND t.on_timeout IS NOT NULL AND t.finished_at IS NULL
      AND t.due_at <= v_now
    LEFT JOIN horsies_workflow_edges e ON e.workflow_id = w.id AND e.upstream = t.number
    LEFT JOIN horsies_workflow_nodes n ON n.workflow_id = w.id AND n.number = e.downstream
    WHERE w.id = ANY (p_runs)
    GROUP BY w.id
    HAVING w.status = 'RUNNING' AND w.retrying IS NULL AND w.parent_id IS NULL AND w.max_in_flight IS NULL AND count(*) <= p_many
      AND bool_and(t.kind = 'timer' AND n.kind = 'task' AND n.status = 'PENDING' AND n.rule = 'all'
                   AND n.when_path IS NULL));
  IF v_runs = '{}' THEN
    RETURN '{}';
  END IF;
  WITH ended AS (
    UPDATE horsies_workflow_nodes t SET status = 'COMPLETED', finished_at = v_now, value = 'null'
    WHERE t.workflow_id = ANY (v_runs) AND t.status = 'WAITING' AND t.on_timeout IS NOT NULL AND t.finished_at IS NULL AND t.due_at <= v_now
    RETURNING t.workflow_id, t.number
  ), told AS MATERIALIZED (
    SELECT e.workflow_id, e.downstream, count(*)::int AS many
    FROM ended t JOIN horsies_workflow_edges e ON e.workflow_id = t.workflow_id AND e.upstream = t.number
    GROUP BY e.workflow_id, e.downstream
  ), ready AS (
    UPDATE horsies_workflow_nodes n
    SET open = n.open - d.many, ok = n.ok + d.many, status = CASE WHEN n.open = d.many THEN 'READY' ELSE n.status END
    FROM told d WHERE n.workflow_id = d.workflow_id AND n.number = d.downstream
    RETURNING n.workflow_id, n.number, n.status
  )
  SELECT coalesce(array_agg(r.workflow_id), '{}'), coalesce(array_agg(r.number), '{}') INTO v_workflows, v_numbers
  FROM ready r WHERE r.status = 'READY';
  PERFORM horsies_send_all(v_workflows, v_numbers, p_max_bytes, p_now);
  RETURN v_runs;
END
$$;
