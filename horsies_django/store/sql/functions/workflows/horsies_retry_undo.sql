-- Runs the failed undos of a run again, once all have ended; the caller holds its lock. verdict: 'RETRIED'; 'UNDONE' (none has failed);
-- 'UNDOING' (they have not ended); NULL if the run has no undos.
-- They get edges between one another where others between them are done, so that they keep their order.
-- Moves undo nodes FAILED, CANCELLED, EXPIRED -> ADDED, about which horsies_propagate decides; the run -> COMPENSATING.
-- Locks: as horsies_replace_tasks. Index: primary keys, horsies_tasks_node.
CREATE OR REPLACE FUNCTION horsies_retry_undo(p_workflow uuid) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
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
  INSERT INTO horsies_workflow_edges (workflow_id, upstream, downstream)
  WITH RECURSIVE reached (source, number, again) AS (  -- again: this one failed, too; the search ends at it
    SELECT a.number, a.number, false FROM unnest(v_again) AS a (number)
    UNION
    SELECT r.source, d.number, d.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
    FROM reached r CROSS JOIN LATERAL horsies_downstream(p_workflow, r.number) AS d WHERE NOT r.again
  )
  SELECT p_workflow, r.source, r.number FROM reached r WHERE r.again
  ON CONFLICT DO NOTHING;
  WITH begun AS MATERIALIZED (
    SELECT n.ctid, horsies_begun_total(p_workflow, n.undoes) AS total
    FROM unnest(v_again) AS a (number) CROSS JOIN LATERAL (
      SELECT n.ctid, n.undoes FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.number = a.number OFFSET 0) AS n
  )
  UPDATE horsies_workflow_nodes n
  SET status = 'ADDED', total = b.total, expanded = b.total, in_flight = 0, items_ok = 0, items_bad = 0
  FROM begun b WHERE n.ctid = b.ctid;
  PERFORM horsies_replace_tasks(p_workflow, v_again, '{}', 2147483647);
  UPDATE horsies_workflows w
  SET status = 'COMPENSATING', finished_at = NULL, error_code = CASE WHEN w.result #>> '{err,data,node}' IS NULL THEN 'WORKFLOW_CANCELLED'
                                                                     ELSE w.result #>> '{err,data,error_code}' END,
      result = jsonb_build_object('err', w.result #> '{err,data,cause}')
  WHERE w.id = p_workflow;
  RETURN 'RETRIED';
END
$$;
