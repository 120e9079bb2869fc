-- Decides about nodes of a run: nodes downstream of p_moved, which just became final, and of every
-- node that this skips in turn; also ADDED nodes, which joined the run, are run again, or were
-- left, in any order.
-- The counters of a node change by the ends of its upstream nodes, because counting edges for each
-- finished node would be quadratic. The counters of ADDED nodes are not changed, but counted when
-- the nodes are admitted. Besides, only horsies_advance_plain, horsies_send_all and
-- horsies_retry_part change counters.
-- Rules: 'all'; 'quorum', of needs among the branches that ok and bad count, once all others in
-- open have ended; or, of a batch, 'succeeded', 'failed' and 'finished', which wait for every
-- upstream node. With allow_failed, nodes that did not complete count like nodes that did.
-- Args: p_moved has nodes that just became final. p_ending is whether the run is to end: then this
-- decides only about undos and nodes that run when others ended. horsies_end_nodes ends the others,
-- and those that are admitted are CANCELLED. p_many is about the maximum of skipped and of admitted
-- nodes; the other ADDED nodes are left, and the other nodes downstream of final ones become ADDED.
-- Returns: many is the number of nodes that it skipped or admitted. failed is whether one of
-- p_moved, or a node that was admitted, is FAILED, CANCELLED or EXPIRED. refused is whether a node
-- with a quorum was skipped and some upstream nodes had failed.
-- Moves: PENDING, ADDED -> PENDING, READY, SKIPPED, ADDED; ADDED -> CANCELLED.
-- Locks: the caller holds the lock of the run.
-- Index: horsies_workflow_nodes_added, horsies_workflow_edges_up, primary keys.
CREATE OR REPLACE FUNCTION horsies_propagate(
  p_workflow uuid, p_moved bigint[], p_ending boolean, p_many int, p_now timestamptz,
  OUT failed boolean, OUT refused boolean, OUT many int
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_moved bigint[] := p_moved;
  v_admit int := CASE
    WHEN EXISTS (
      SELECT FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_workflow AND n.status = 'ADDED'
    ) THEN p_many
    ELSE 0
  END;
  v_many int;
BEGIN
  refused := false;
  many := 0;
  failed := false;

  WHILE v_moved <> '{}' OR v_admit > 0 LOOP
    WITH final AS MATERIALIZED (
      SELECT final_node.number, final_node.status
      FROM unnest(v_moved) AS ended_node (number)
      CROSS JOIN LATERAL (
        SELECT final_node.number, final_node.status
        FROM horsies_workflow_nodes final_node
        WHERE final_node.workflow_id = p_workflow AND final_node.number = ended_node.number
        OFFSET 0
      ) AS final_node
    ),
    added AS MATERIALIZED (
      SELECT added_node.number
      FROM horsies_workflow_nodes added_node
      WHERE added_node.workflow_id = p_workflow AND added_node.status = 'ADDED'
      LIMIT v_admit
    ),
    counted AS MATERIALIZED (
      -- The changes of the counters of nodes downstream of final ones.
      SELECT
        edge.downstream AS number,
        -count(*)::int AS open,
        false AS admitted,
        count(*) FILTER (WHERE edge.counts AND ended_node.status = 'COMPLETED')::int AS ok,
        count(*) FILTER (WHERE edge.counts AND ended_node.status <> 'COMPLETED')::int AS bad
      FROM final ended_node
      CROSS JOIN LATERAL (
        SELECT edge.downstream, edge.counts
        FROM horsies_workflow_edges edge
        WHERE edge.workflow_id = p_workflow AND edge.upstream = ended_node.number
        OFFSET 0
      ) AS edge
      GROUP BY edge.downstream
      UNION ALL
      -- The counters of admitted nodes.
      SELECT
        admitted_node.number,
        count(upstream_node.status) FILTER (
          WHERE upstream_node.finished_at IS NULL OR upstream_node.status = 'ADDED'
        )::int,
        true,
        count(*) FILTER (WHERE upstream_node.counts AND upstream_node.status = 'COMPLETED')::int,
        count(*) FILTER (
          WHERE upstream_node.counts
            AND upstream_node.finished_at IS NOT NULL
            AND upstream_node.status NOT IN ('COMPLETED', 'ADDED')
        )::int
      FROM added admitted_node
      LEFT JOIN LATERAL horsies_upstream(p_workflow, admitted_node.number) AS upstream_node ON true
      GROUP BY admitted_node.number
    ),
    decided AS MATERIALIZED (
      SELECT
        node.ctid,
        change.admitted,
        counters.*,
        change.admitted OR decision.verdict IS NOT NULL AS judged,
        CASE
          WHEN change.admitted AND NOT phase.decides THEN 'CANCELLED'
          WHEN decision.verdict IS NULL THEN
            CASE WHEN phase.decides THEN 'ADDED' ELSE node.status END
          WHEN decision.verdict = 'READY' AND node.when_path IS NOT NULL THEN
            CASE horsies_condition(p_workflow, node.when_node, node.when_path)
              WHEN true THEN 'READY'
              WHEN false THEN 'SKIPPED'
              ELSE 'PENDING'
            END
          ELSE decision.verdict
        END AS status,
        NOT p_ending
        AND decision.verdict = 'SKIPPED'
        AND node.rule = 'quorum'
        AND EXISTS (
          SELECT FROM horsies_upstream(p_workflow, node.number) AS upstream_node
          WHERE upstream_node.counts AND upstream_node.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
        ) AS refused
      FROM counted change
      CROSS JOIN LATERAL (
        SELECT node.ctid, node.*
        FROM horsies_workflow_nodes node
        WHERE node.workflow_id = p_workflow AND node.number = change.number
        OFFSET 0
      ) AS node
      CROSS JOIN LATERAL (
        SELECT
          CASE WHEN change.admitted THEN 0 ELSE node.open END + change.open AS open,
          CASE WHEN change.admitted THEN 0 ELSE node.ok END + change.ok AS ok,
          CASE WHEN change.admitted THEN 0 ELSE node.bad END + change.bad AS bad
      ) AS counters
      CROSS JOIN LATERAL (
        SELECT
          node.status IN ('PENDING', 'ADDED')
          AND (NOT p_ending OR node.kind = 'undo' OR node.rule IN ('failed', 'finished')) AS decides
      ) AS phase
      CROSS JOIN LATERAL (
        SELECT
          CASE
            WHEN NOT phase.decides OR NOT change.admitted AND horsies_propagate.many >= p_many
              THEN NULL
            WHEN node.rule = 'quorum'
              AND node.branches - CASE WHEN node.allow_failed THEN 0 ELSE counters.bad END
                < node.needs
              THEN 'SKIPPED'
            WHEN node.rule = 'quorum' THEN
              CASE
                WHEN counters.ok + CASE WHEN node.allow_failed THEN counters.bad ELSE 0 END
                    < node.needs
                  OR counters.open > node.branches - counters.ok - counters.bad
                  THEN 'PENDING'
                ELSE 'READY'
              END
            WHEN node.rule = 'all' AND counters.bad > 0 AND NOT node.allow_failed THEN 'SKIPPED'
            WHEN counters.open > 0 THEN 'PENDING'
            WHEN node.rule IN ('failed', 'succeeded')
              AND (node.rule = 'succeeded') = EXISTS (
                SELECT FROM horsies_upstream(p_workflow, node.number) AS upstream_node
                WHERE upstream_node.counts
                  AND upstream_node.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
              )
              THEN 'SKIPPED'
            ELSE 'READY'
          END AS verdict
        OFFSET 0
      ) AS decision
      WHERE (node.status = 'ADDED') = change.admitted
    ),
    moved AS (
      UPDATE horsies_workflow_nodes node
      SET open = decided_node.open,
          ok = decided_node.ok,
          bad = decided_node.bad,
          status = decided_node.status,
          finished_at = CASE
            WHEN decided_node.judged AND decided_node.status IN ('SKIPPED', 'CANCELLED') THEN p_now
            WHEN NOT decided_node.admitted THEN node.finished_at
          END,
          error_code = CASE
            WHEN NOT decided_node.admitted THEN node.error_code
            WHEN decided_node.status = 'CANCELLED' THEN 'WORKFLOW_ENDED'
          END,
          error = CASE
            WHEN NOT decided_node.admitted THEN node.error
            WHEN decided_node.status = 'CANCELLED'
              THEN 'the run had ended before this node was admitted'
          END
      FROM decided decided_node
      WHERE node.ctid = decided_node.ctid
      RETURNING
        node.number,
        decided_node.judged AND decided_node.status IN ('SKIPPED', 'CANCELLED') AS ended,
        decided_node.admitted,
        decided_node.refused
    )
    SELECT
      coalesce(array_agg(moved_node.number) FILTER (WHERE moved_node.ended), '{}'),
      count(*) FILTER (WHERE moved_node.ended OR moved_node.admitted),
      horsies_propagate.refused OR coalesce(bool_or(moved_node.refused), false),
      failed OR EXISTS (
        SELECT FROM final ended_node WHERE ended_node.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
      )
    INTO v_moved, v_many, refused, failed
    FROM moved moved_node;

    many := many + v_many;
    v_admit := 0;
  END LOOP;
END
$$;
