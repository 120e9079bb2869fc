-- Decides about nodes that joined a run, or that are run again: counts their upstream nodes and moves them on.
-- Moves ADDED -> PENDING, READY, SKIPPED; CANCELLED if p_end. Returns the nodes that are final now.
-- Locks: the caller holds the lock of the run. Index: horsies_workflow_nodes_open, horsies_workflow_edges_down, primary keys.
CREATE FUNCTION horsies_admit_nodes(p_workflow uuid, p_end boolean, p_now timestamptz) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_moved bigint[];
BEGIN
  IF NOT EXISTS (SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.status = 'ADDED' AND n.finished_at IS NULL) THEN
    RETURN '{}';
  END IF;
  IF p_end THEN
    WITH ended AS (
      UPDATE horsies_workflow_nodes n
      SET status = 'CANCELLED', finished_at = p_now, error_code = 'WORKFLOW_ENDED', error = 'the run had ended before this node was admitted'
      WHERE n.workflow_id = p_workflow AND n.status = 'ADDED' AND n.finished_at IS NULL RETURNING n.number
    )
    SELECT array_agg(e.number) INTO v_moved FROM ended e;
    RETURN coalesce(v_moved, '{}');
  END IF;
  WITH added AS MATERIALIZED (
    SELECT n.workflow_id, n.number FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_workflow AND n.status = 'ADDED' AND n.finished_at IS NULL
  ), counted AS MATERIALIZED (
    SELECT a.workflow_id, a.number, count(u.number) FILTER (WHERE u.finished_at IS NULL)::int AS open,
           count(u.number) FILTER (WHERE e.counts AND u.status = 'COMPLETED')::int AS ok,
           count(u.number) FILTER (WHERE e.counts AND u.finished_at IS NOT NULL AND u.status <> 'COMPLETED')::int AS bad
    FROM added a
    LEFT JOIN horsies_workflow_edges e ON e.workflow_id = a.workflow_id AND e.downstream = a.number
    LEFT JOIN horsies_workflow_nodes u ON u.workflow_id = e.workflow_id AND u.number = e.upstream
    GROUP BY a.workflow_id, a.number
  ), decided AS MATERIALIZED (
    SELECT c.*, CASE WHEN v.verdict = 'READY' AND n.when_path IS NOT NULL THEN
                       CASE horsies_condition(p_workflow, n.when_node, n.when_path) WHEN true THEN 'READY' WHEN false THEN 'SKIPPED' ELSE 'PENDING' END
                     ELSE v.verdict END AS status
    FROM counted c JOIN horsies_workflow_nodes n ON n.workflow_id = c.workflow_id AND n.number = c.number
    CROSS JOIN LATERAL (SELECT horsies_join_verdict(
      p_workflow, n.number, n.rule, n.needs, n.allow_failed, n.branches, c.open, c.ok, c.bad) AS verdict) AS v
  ), admitted AS (
    UPDATE horsies_workflow_nodes n
    SET open = d.open, ok = d.ok, bad = d.bad, status = d.status, finished_at = CASE WHEN d.status = 'SKIPPED' THEN p_now END
    FROM decided d WHERE n.workflow_id = d.workflow_id AND n.number = d.number
    RETURNING n.number, n.status
  )
  SELECT array_agg(a.number) FILTER (WHERE a.status = 'SKIPPED') INTO v_moved FROM admitted a;
  RETURN coalesce(v_moved, '{}');
END
$$;
