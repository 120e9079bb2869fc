-- Runs the failed undos of a run again, once all have ended; the caller holds its lock. verdict: 'RETRIED'; 'UNDONE' (none has failed);
-- 'UNDOING' (they have not ended); NULL if the run has no undos.
-- They get edges between one another where others between them are done, so that they keep their order.
-- Moves undo nodes FAILED, CANCELLED, EXPIRED -> ADDED, about which horsies_propagate decides; the run -> COMPENSATING.
-- Locks: task rows. Index: primary keys, horsies_tasks_node.
CREATE OR REPLACE FUNCTION horsies_retry_undo(p_workflow uuid) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_status text;
  v_again bigint[];
  v_ids uuid[];
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
  v_ids := ARRAY(
    SELECT r.id FROM unnest(v_again) AS a (number) CROSS JOIN LATERAL (  -- not a join, which may read all tasks of the run for each node
      SELECT x.id FROM horsies_tasks x
      WHERE x.workflow_id = p_workflow AND x.node = a.number AND x.status <> 'COMPLETED' AND x.error_code IS DISTINCT FROM 'TASK_SKIPPED'
      OFFSET 0) AS r);
  UPDATE horsies_tasks t SET node = NULL, order_stop = NULL WHERE t.id = ANY (v_ids);
  INSERT INTO horsies_workflow_edges (workflow_id, upstream, downstream)
  WITH RECURSIVE reached (source, number, again) AS (  -- again: this one failed, too; the search ends at it
    SELECT a.number, a.number, false FROM unnest(v_again) AS a (number)
    UNION
    SELECT r.source, d.number, d.again FROM reached r CROSS JOIN LATERAL (
      SELECT e.workflow_id, e.downstream FROM horsies_workflow_edges e WHERE e.workflow_id = p_workflow AND e.upstream = r.number OFFSET 0) AS e
    CROSS JOIN LATERAL (
      SELECT n.number, n.status IN ('FAILED', 'CANCELLED', 'EXPIRED') AS again FROM horsies_workflow_nodes n
      WHERE n.workflow_id = e.workflow_id AND n.number = e.downstream OFFSET 0) AS d
    WHERE NOT r.again
  )
  SELECT p_workflow, r.source, r.number FROM reached r WHERE r.again
  ON CONFLICT DO NOTHING;
  WITH begun AS MATERIALIZED (
    SELECT p_workflow AS workflow_id, a.number, horsies_begun_total(p_workflow, o.number, o.undo -> 'begun') AS total,
           (SELECT count(*) FROM horsies_tasks t WHERE t.workflow_id = p_workflow AND t.node = a.number AND t.advanced_at IS NOT NULL)::int AS done
    FROM unnest(v_again) AS a (number)
    CROSS JOIN LATERAL (SELECT n.undoes FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.number = a.number OFFSET 0) AS x
    CROSS JOIN LATERAL (
      SELECT n.number, n.undo FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.number = x.undoes OFFSET 0) AS o
  )
  UPDATE horsies_workflow_nodes n
  SET status = 'ADDED', total = b.total, finished_at = NULL, error_code = NULL, error = NULL, task_id = NULL,
      expanded = 0, in_flight = 0, items_ok = b.done, items_bad = 0
  FROM begun b WHERE n.workflow_id = b.workflow_id AND n.number = b.number;
  WITH told AS MATERIALIZED (
    SELECT p_workflow AS workflow_id, e.downstream AS number, count(*)::int AS open
    FROM unnest(v_again) AS a (number) CROSS JOIN LATERAL (
      SELECT x.downstream FROM horsies_workflow_edges x WHERE x.workflow_id = p_workflow AND x.upstream = a.number OFFSET 0) AS e
    GROUP BY e.downstream
  )
  UPDATE horsies_workflow_nodes n SET open = n.open + t.open, bad = n.bad - t.open
  FROM told t WHERE n.workflow_id = t.workflow_id AND n.number = t.number AND n.finished_at IS NOT NULL;  -- those that do not run again
  UPDATE horsies_workflows w
  SET status = 'COMPENSATING', finished_at = NULL, error_code = CASE WHEN w.result #>> '{err,data,node}' IS NULL THEN 'WORKFLOW_CANCELLED'
                                                                     ELSE w.result #>> '{err,data,error_code}' END,
      result = jsonb_build_object('err', w.result #> '{err,data,cause}')
  WHERE w.id = p_workflow;
  RETURN 'RETRIED';
END
$$;
