-- Tells the downstream nodes of nodes that just became final, and those of every node that is skipped in turn. Once it has skipped p_many,
-- it leaves what it would decide next to horsies_admit_nodes.
-- The counters of a node change only here and in horsies_admit_nodes: re-counting edges for each finished node would be quadratic.
-- ADDED nodes are not told: they are counted when they are admitted. p_ending: the run is to end, so this decides only about nodes that run
-- when others ended; horsies_end_nodes ends the others.
-- Moves PENDING -> READY, SKIPPED, ADDED. many: how many it skipped. failed: whether one of p_moved failed. refused: whether a node with
-- a quorum was skipped and some upstream nodes had failed.
-- Nodes are joined by run and number, both from a materialized list: with the run as a constant, a plan may read all its nodes each time.
-- Locks: the caller holds the lock of the run. Index: primary keys of edges and nodes.
CREATE FUNCTION horsies_propagate(p_workflow uuid, p_moved bigint[], p_ending boolean, p_many int, p_now timestamptz,
                                  OUT failed boolean, OUT refused boolean, OUT many int)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_moved bigint[] := p_moved;
BEGIN
  refused := false;
  many := 0;
  failed := false;
  WHILE v_moved <> '{}' LOOP
    WITH final AS MATERIALIZED (
      SELECT u.workflow_id, u.number, u.status
      FROM (SELECT p_workflow AS workflow_id, unnest(v_moved) AS number) AS f
      JOIN horsies_workflow_nodes u ON u.workflow_id = f.workflow_id AND u.number = f.number
    ), told AS MATERIALIZED (
      SELECT e.workflow_id, e.downstream AS number, count(*)::int AS many,
             count(*) FILTER (WHERE e.counts AND f.status = 'COMPLETED')::int AS ok,
             count(*) FILTER (WHERE e.counts AND f.status <> 'COMPLETED')::int AS bad
      FROM final f JOIN horsies_workflow_edges e ON e.workflow_id = f.workflow_id AND e.upstream = f.number
      GROUP BY e.workflow_id, e.downstream
    ), decided AS MATERIALIZED (
      SELECT t.*, n.rule, n.allow_failed, v.verdict,
             CASE WHEN v.verdict IS NULL THEN CASE WHEN v.decides THEN 'ADDED' ELSE n.status END
                  WHEN v.verdict = 'READY' AND n.when_path IS NOT NULL THEN
                      CASE horsies_condition(p_workflow, n.when_node, n.when_path) WHEN true THEN 'READY' WHEN false THEN 'SKIPPED' ELSE 'PENDING' END
                  ELSE v.verdict END AS status,
             v.verdict IS NOT NULL AS waited
      FROM told t JOIN horsies_workflow_nodes n ON n.workflow_id = t.workflow_id AND n.number = t.number AND n.status <> 'ADDED'
      CROSS JOIN LATERAL (SELECT n.status = 'PENDING' AND (NOT p_ending OR n.kind = 'undo' OR n.rule IN ('failed', 'finished')) AS decides) AS i
      CROSS JOIN LATERAL (SELECT i.decides, CASE WHEN i.decides AND horsies_propagate.many < p_many THEN horsies_join_verdict(
        p_workflow, n.number, n.rule, n.needs, n.allow_failed, n.branches, n.open - t.many, n.ok + t.ok, n.bad + t.bad) END AS verdict) AS v
    ), moved AS (
      UPDATE horsies_workflow_nodes n
      SET open = n.open - d.many, ok = n.ok + d.ok, bad = n.bad + d.bad, status = d.status,
          finished_at = CASE WHEN d.waited AND d.status = 'SKIPPED' THEN p_now ELSE n.finished_at END
      FROM decided d WHERE n.workflow_id = d.workflow_id AND n.number = d.number
      RETURNING n.number, d.waited AND d.status = 'SKIPPED' AS skipped,
                d.verdict = 'SKIPPED' AND d.rule = 'quorum' AND horsies_has_failed_upstream(p_workflow, d.number) AS refused
    )
    SELECT coalesce(array_agg(m.number) FILTER (WHERE m.skipped), '{}'), horsies_propagate.refused OR coalesce(bool_or(m.refused), false),
           failed OR EXISTS (SELECT FROM final f WHERE f.status IN ('FAILED', 'CANCELLED', 'EXPIRED'))
    INTO v_moved, refused, failed FROM moved m;
    many := many + cardinality(v_moved);
  END LOOP;
END
$$;
