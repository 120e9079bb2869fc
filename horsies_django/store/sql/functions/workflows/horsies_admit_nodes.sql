-- Decides about nodes that joined a run, are run again, or were left by horsies_propagate, p_many at most, in any order: counts their
-- upstream nodes and moves them on. p_ending: as in horsies_propagate; the others are CANCELLED.
-- Moves ADDED -> PENDING, READY, SKIPPED, CANCELLED. moved: the nodes that are final now. many: how many it decided about. refused: as
-- horsies_propagate returns it.
-- Locks: the caller holds the lock of the run. Index: horsies_workflow_nodes_added, horsies_workflow_edges_down, primary keys.
CREATE FUNCTION horsies_admit_nodes(p_workflow uuid, p_ending boolean, p_many int, p_now timestamptz,
                                    OUT moved bigint[], OUT many int, OUT refused boolean) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  moved := '{}';
  many := 0;
  refused := false;
  IF NOT EXISTS (SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.status = 'ADDED') THEN
    RETURN;
  END IF;
  WITH added AS MATERIALIZED (
    SELECT n.workflow_id, n.number FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.status = 'ADDED' LIMIT p_many
  ), counted AS MATERIALIZED (
    SELECT a.workflow_id, a.number, count(u.number) FILTER (WHERE u.finished_at IS NULL OR u.status = 'ADDED')::int AS open,
           count(u.number) FILTER (WHERE e.counts AND u.status = 'COMPLETED')::int AS ok,
           count(u.number) FILTER (WHERE e.counts AND u.finished_at IS NOT NULL AND u.status NOT IN ('COMPLETED', 'ADDED'))::int AS bad
    FROM added a
    LEFT JOIN horsies_workflow_edges e ON e.workflow_id = a.workflow_id AND e.downstream = a.number
    LEFT JOIN horsies_workflow_nodes u ON u.workflow_id = e.workflow_id AND u.number = e.upstream
    GROUP BY a.workflow_id, a.number
  ), decided AS MATERIALIZED (
    SELECT c.*, CASE WHEN p_ending AND n.rule NOT IN ('failed', 'finished') THEN 'CANCELLED'
                  WHEN v.verdict = 'READY' AND n.when_path IS NOT NULL THEN
                       CASE horsies_condition(p_workflow, n.when_node, n.when_path) WHEN true THEN 'READY' WHEN false THEN 'SKIPPED' ELSE 'PENDING' END
                     ELSE v.verdict END AS status,
           NOT p_ending AND v.verdict = 'SKIPPED' AND n.rule = 'quorum' AND horsies_has_failed_upstream(p_workflow, n.number) AS refused
    FROM counted c JOIN horsies_workflow_nodes n ON n.workflow_id = c.workflow_id AND n.number = c.number
    CROSS JOIN LATERAL (SELECT horsies_join_verdict(
      p_workflow, n.number, n.rule, n.needs, n.allow_failed, n.branches, c.open, c.ok, c.bad) AS verdict) AS v
  ), admitted AS (
    UPDATE horsies_workflow_nodes n
    SET open = d.open, ok = d.ok, bad = d.bad, status = d.status,
        finished_at = CASE WHEN d.status IN ('SKIPPED', 'CANCELLED') THEN p_now END,
        error_code = CASE WHEN d.status = 'CANCELLED' THEN 'WORKFLOW_ENDED' END,
        error = CASE WHEN d.status = 'CANCELLED' THEN 'the run had ended before this node was admitted' END
    FROM decided d WHERE n.workflow_id = d.workflow_id AND n.number = d.number
    RETURNING n.number, n.finished_at, d.refused
  )
  SELECT coalesce(array_agg(a.number) FILTER (WHERE a.finished_at IS NOT NULL), '{}'), count(*), coalesce(bool_or(a.refused), false)
  INTO moved, many, refused FROM admitted a;
END
$$;
