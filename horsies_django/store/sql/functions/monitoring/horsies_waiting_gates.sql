-- Counts by workflow and name the gates that wait for a decision. It looks at p_many waits without
-- an end, and at the p_many waits that end first.
-- Returns: the counts, with the oldest run and the number of its gate.
-- Index: horsies_workflow_nodes_due, the primary key of horsies_workflows.
CREATE OR REPLACE FUNCTION horsies_waiting_gates(p_many int)
RETURNS TABLE (workflow text, gate text, many int, run uuid, number bigint)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN QUERY
  SELECT
    run.name::text,
    waits.name::text,
    count(*)::int,
    (array_agg(run.id ORDER BY run.id))[1],
    (array_agg(waits.number ORDER BY run.id, waits.number))[1]
  FROM (
    (
      SELECT node.workflow_id, node.number, node.name, node.kind
      FROM horsies_workflow_nodes node
      WHERE node.status = 'WAITING' AND node.finished_at IS NULL AND node.due_at IS NULL
      LIMIT p_many
    )
    UNION ALL
    (
      SELECT node.workflow_id, node.number, node.name, node.kind
      FROM horsies_workflow_nodes node
      WHERE node.status = 'WAITING' AND node.finished_at IS NULL AND node.due_at IS NOT NULL
      ORDER BY node.due_at
      LIMIT p_many
    )
  ) AS waits
  JOIN horsies_workflows run ON run.id = waits.workflow_id
  WHERE waits.kind = 'gate'
  GROUP BY run.name, waits.name
  ORDER BY 3 DESC, 1, 2;
END
$$;
