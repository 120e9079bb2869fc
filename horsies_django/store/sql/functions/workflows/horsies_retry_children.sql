-- Retries the child runs of nodes that are to run again, p_many at most. A node that waits for others that run again gets a new run
-- instead, because its inputs may change. begun: child runs are retried. more: others may be left.
-- Moves nodes ADDED -> ENQUEUED; child runs as horsies_begin_retry.
-- Locks: rows of child runs; the caller holds the lock of the run. Index: primary keys, horsies_workflow_nodes_added,
-- horsies_workflow_edges_down.
CREATE OR REPLACE FUNCTION horsies_retry_children(p_workflow uuid, p_many int, p_now timestamptz, OUT begun boolean, OUT more boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_many int;
  v_children uuid[];
BEGIN
  begun := false;
  WITH others AS MATERIALIZED (
    SELECT n.workflow_id, n.number FROM horsies_workflow_nodes n LEFT JOIN horsies_workflows c ON c.id = n.task_id
    WHERE n.workflow_id = p_workflow AND n.status = 'ADDED' AND n.kind = 'workflow' AND n.task_id IS NOT NULL
      AND (c.finished_at IS NULL OR EXISTS (
        SELECT FROM horsies_workflow_edges e CROSS JOIN LATERAL (  -- see horsies_has_failed_upstream
          SELECT FROM horsies_workflow_nodes u
          WHERE u.workflow_id = e.workflow_id AND u.number = e.upstream AND u.status = 'ADDED' OFFSET 0) AS u
        WHERE e.workflow_id = n.workflow_id AND e.downstream = n.number))
    LIMIT p_many
  )
  UPDATE horsies_workflow_nodes n SET task_id = NULL FROM others o WHERE n.workflow_id = o.workflow_id AND n.number = o.number;
  GET DIAGNOSTICS v_many = ROW_COUNT;
  more := v_many = p_many;
  IF more THEN
    RETURN;
  END IF;
  WITH kept AS MATERIALIZED (
    SELECT n.workflow_id, n.number FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_workflow AND n.status = 'ADDED' AND n.kind = 'workflow' AND n.task_id IS NOT NULL LIMIT p_many
  ), goes_on AS (
    UPDATE horsies_workflow_nodes n SET status = 'ENQUEUED' FROM kept k WHERE n.workflow_id = k.workflow_id AND n.number = k.number
    RETURNING n.task_id
  )
  SELECT coalesce(array_agg(g.task_id), '{}') INTO v_children FROM goes_on g;
  PERFORM horsies_begin_retry(v_children, p_now);
  begun := v_children <> '{}';
  more := cardinality(v_children) = p_many;
END
$$;
