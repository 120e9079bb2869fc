-- Runs the failed undos of a run again, once all have ended; the caller holds its lock. verdict: 'RETRIED'; 'UNDONE' (none has failed);
-- 'UNDOING' (they have not ended); NULL if the run has no undos.
-- They get edges between one another where others between them are done, so that they keep their order.
-- Moves undo nodes FAILED, CANCELLED, EXPIRED -> READY, PENDING; the run -> COMPENSATING.
-- Locks: task rows. Index: primary keys, horsies_tasks_node.
CREATE FUNCTION horsies_retry_undo(p_workflow uuid) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_status text;
  v_again bigint[];
BEGIN
  SELECT w.status INTO v_status FROM horsies_workflows w WHERE w.id = p_workflow;
  IF v_status = 'COMPENSATING' THEN
    RETURN 'UNDOING';
  ELSIF NOT EXISTS (SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.kind = 'undo') THEN
    RETURN NULL;
  END IF;
  v_again := ARRAY(SELECT n.number FROM horsies_workflow_nodes n
                   WHERE n.workflow_id = p_workflow AND n.kind = 'undo' AND n.status IN ('FAILED', 'CANCELLED', 'EXPIRED'));
  IF v_again = '{}' THEN
    RETURN 'UNDONE';
  END IF;
  UPDATE horsies_tasks t SET node = NULL
  WHERE t.workflow_id = p_workflow AND t.node = ANY (v_again) AND t.status <> 'COMPLETED' AND t.error_code IS DISTINCT FROM 'TASK_SKIPPED';
  INSERT INTO horsies_workflow_edges (workflow_id, upstream, downstream)
  WITH RECURSIVE reached (source, number) AS (
    SELECT a.number, a.number FROM unnest(v_again) AS a (number)
    UNION
    SELECT r.source, e.downstream
    FROM reached r JOIN horsies_workflow_edges e ON e.workflow_id = p_workflow AND e.upstream = r.number
    WHERE r.number = r.source OR r.number <> ALL (v_again)
  )
  SELECT p_workflow, r.source, r.number FROM reached r WHERE r.number = ANY (v_again) AND r.number <> r.source
  ON CONFLICT DO NOTHING;
  UPDATE horsies_workflow_nodes n
  SET status = CASE WHEN c.open = 0 THEN 'READY' ELSE 'PENDING' END, open = c.open, ok = c.ok, bad = c.bad,
      finished_at = NULL, error_code = NULL, error = NULL, task_id = NULL, expanded = 0, in_flight = 0, items_bad = 0,
      total = b.total, items_ok = (
        SELECT count(*) FROM horsies_tasks t WHERE t.workflow_id = p_workflow AND t.node = n.number AND t.advanced_at IS NOT NULL)::int
  FROM unnest(v_again) AS a (number)
  CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE u.number = ANY (v_again))::int AS open, count(*) FILTER (WHERE u.status = 'COMPLETED')::int AS ok,
           count(*) FILTER (WHERE u.status <> 'COMPLETED' AND u.number <> ALL (v_again))::int AS bad
    FROM horsies_workflow_edges e JOIN horsies_workflow_nodes u ON u.workflow_id = p_workflow AND u.number = e.upstream
    WHERE e.workflow_id = p_workflow AND e.downstream = a.number) AS c
  JOIN horsies_workflow_nodes x ON x.workflow_id = p_workflow AND x.number = a.number
  JOIN horsies_workflow_nodes o ON o.workflow_id = p_workflow AND o.number = x.undoes
  CROSS JOIN LATERAL (SELECT horsies_begun_total(p_workflow, o.number, o.undo -> 'begun') AS total) AS b
  WHERE n.workflow_id = p_workflow AND n.number = a.number;
  UPDATE horsies_workflow_nodes n SET open = n.open + c.open, bad = n.bad - c.open  -- those that ended otherwise: completed or skipped
  FROM (SELECT e.downstream AS number, count(*)::int AS open FROM horsies_workflow_edges e
        WHERE e.workflow_id = p_workflow AND e.upstream = ANY (v_again) GROUP BY e.downstream) AS c
  WHERE n.workflow_id = p_workflow AND n.number = c.number AND n.number <> ALL (v_again);
  UPDATE horsies_workflows w
  SET status = 'COMPENSATING', finished_at = NULL, error_code = CASE WHEN w.result #>> '{err,data,node}' IS NULL THEN 'WORKFLOW_CANCELLED'
                                                                     ELSE w.result #>> '{err,data,error_code}' END,
      result = jsonb_build_object('err', w.result #> '{err,data,cause}')
  WHERE w.id = p_workflow;
  RETURN 'RETRIED';
END
$$;
