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
      SELECT u.number, u.status
      FROM unnest(v_moved) AS f (number)
      CROSS JOIN LATERAL (
        SELECT u.number, u.status
        FROM horsies_workflow_nodes u
        WHERE u.workflow_id = p_workflow AND u.number = f.number
        OFFSET 0
      ) AS u
    ),
    added AS MATERIALIZED (
      SELECT n.number
      FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_workflow AND n.status = 'ADDED'
      LIMIT v_admit
    ),
    counted AS MATERIALIZED (
      -- The changes of the counters of nodes downstream of final ones.
      SELECT
        e.downstream AS number,
        -count(*)::int AS open,
        false AS admitted,
        count(*) FILTER (WHERE e.counts AND f.status = 'COMPLETED')::int AS ok,
        count(*) FILTER (WHERE e.counts AND f.status <> 'COMPLETED')::int AS bad
      FROM final f
      CROSS JOIN LATERAL (
        SELECT e.downstream, e.counts
        FROM horsies_workflow_edges e
        WHERE e.workflow_id = p_workflow AND e.upstream = f.number
        OFFSET 0
      ) AS e
      GROUP BY e.downstream
      UNION ALL
      -- The counters of admitted nodes.
      SELECT
        a.number,
        count(u.status) FILTER (WHERE u.finished_at IS NULL OR u.status = 'ADDED')::int,
        true,
        count(*) FILTER (WHERE u.counts AND u.status = 'COMPLETED')::int,
        count(*) FILTER (
          WHERE u.counts AND u.finished_at IS NOT NULL AND u.status NOT IN ('COMPLETED', 'ADDED')
        )::int
      FROM added a
      LEFT JOIN LATERAL horsies_upstream(p_workflow, a.number) AS u ON true
      GROUP BY a.number
    ),
    decided AS MATERIALIZED (
      SELECT
        n.ctid,
        c.admitted,
        s.*,
        c.admitted OR v.verdict IS NOT NULL AS judged,
        CASE
          WHEN c.admitted AND NOT i.decides THEN 'CANCELLED'
          WHEN v.verdict IS NULL THEN CASE WHEN i.decides THEN 'ADDED' ELSE n.status END
          WHEN v.verdict = 'READY' AND n.when_path IS NOT NULL THEN
            CASE horsies_condition(p_workflow, n.when_node, n.when_path)
              WHEN true THEN 'READY'
              WHEN false THEN 'SKIPPED'
              ELSE 'PENDING'
            END
          ELSE v.verdict
        END AS status,
        NOT p_ending
        AND v.verdict = 'SKIPPED'
        AND n.rule = 'quorum'
        AND EXISTS (
          SELECT FROM horsies_upstream(p_workflow, n.number) AS u
          WHERE u.counts AND u.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
        ) AS refused
      FROM counted c
      CROSS JOIN LATERAL (
        SELECT n.ctid, n.*
        FROM horsies_workflow_nodes n
        WHERE n.workflow_id = p_workflow AND n.number = c.number
        OFFSET 0
      ) AS n
      CROSS JOIN LATERAL (
        SELECT
          CASE WHEN c.admitted THEN 0 ELSE n.open END + c.open AS open,
          CASE WHEN c.admitted THEN 0 ELSE n.ok END + c.ok AS ok,
          CASE WHEN c.admitted THEN 0 ELSE n.bad END + c.bad AS bad
      ) AS s
      CROSS JOIN LATERAL (
        SELECT
          n.status IN ('PENDING', 'ADDED')
          AND (NOT p_ending OR n.kind = 'undo' OR n.rule IN ('failed', 'finished')) AS decides
      ) AS i
      CROSS JOIN LATERAL (
        SELECT
          CASE
            WHEN NOT i.decides OR NOT c.admitted AND horsies_propagate.many >= p_many THEN NULL
            WHEN n.rule = 'quorum'
              AND n.branches - CASE WHEN n.allow_failed THEN 0 ELSE s.bad END < n.needs
              THEN 'SKIPPED'
            WHEN n.rule = 'quorum' THEN
              CASE
                WHEN s.ok + CASE WHEN n.allow_failed THEN s.bad ELSE 0 END < n.needs
                  OR s.open > n.branches - s.ok - s.bad
                  THEN 'PENDING'
                ELSE 'READY'
              END
            WHEN n.rule = 'all' AND s.bad > 0 AND NOT n.allow_failed THEN 'SKIPPED'
            WHEN s.open > 0 THEN 'PENDING'
            WHEN n.rule IN ('failed', 'succeeded')
              AND (n.rule = 'succeeded') = EXISTS (
                SELECT FROM horsies_upstream(p_workflow, n.number) AS u
                WHERE u.counts AND u.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
              )
              THEN 'SKIPPED'
            ELSE 'READY'
          END AS verdict
        OFFSET 0
      ) AS v
      WHERE (n.status = 'ADDED') = c.admitted
    ),
    moved AS (
      UPDATE horsies_workflow_nodes n
      SET open = d.open,
          ok = d.ok,
          bad = d.bad,
          status = d.status,
          finished_at = CASE
            WHEN d.judged AND d.status IN ('SKIPPED', 'CANCELLED') THEN p_now
            WHEN NOT d.admitted THEN n.finished_at
          END,
          error_code = CASE
            WHEN NOT d.admitted THEN n.error_code
            WHEN d.status = 'CANCELLED' THEN 'WORKFLOW_ENDED'
          END,
          error = CASE
            WHEN NOT d.admitted THEN n.error
            WHEN d.status = 'CANCELLED' THEN 'the run had ended before this node was admitted'
          END
      FROM decided d
      WHERE n.ctid = d.ctid
      RETURNING
        n.number,
        d.judged AND d.status IN ('SKIPPED', 'CANCELLED') AS ended,
        d.admitted,
        d.refused
    )
    SELECT
      coalesce(array_agg(m.number) FILTER (WHERE m.ended), '{}'),
      count(*) FILTER (WHERE m.ended OR m.admitted),
      horsies_propagate.refused OR coalesce(bool_or(m.refused), false),
      failed OR EXISTS (
        SELECT FROM final f WHERE f.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
      )
    INTO v_moved, v_many, refused, failed
    FROM moved m;

    many := many + v_many;
    v_admit := 0;
  END LOOP;
END
$$;
