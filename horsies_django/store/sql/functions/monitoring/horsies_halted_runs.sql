-- Counts by workflow the runs that a failure has paused, the runs that were not undone completely,
-- and the gates whose timeout is near: in the last tenth of their time.
-- Args: p_many is the largest number of such runs, and of waits with a timeout, to look at.
-- Returns: for each workflow and reason ('paused', 'not undone', 'gate') the count and the first
-- one: its run, since when it is so, and until when.
-- Index: horsies_workflows_halted, horsies_workflow_nodes_due, primary keys.
CREATE OR REPLACE FUNCTION horsies_halted_runs(p_many int)
RETURNS TABLE (
  reason text, name text, many int, run uuid, since timestamptz, until timestamptz
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN QUERY
  SELECT
    found.reason,
    found.name::text,
    count(*)::int,
    (array_agg(found.id ORDER BY found.since))[1],
    min(found.since),
    min(found.until)
  FROM (
    (
      SELECT
        CASE WHEN run.status = 'PAUSED' THEN 'paused' ELSE 'not undone' END AS reason,
        run.name,
        run.id,
        coalesce(run.finished_at, failed.finished_at, run.sent_at) AS since,
        NULL::timestamptz AS until
      FROM horsies_workflows run
      LEFT JOIN horsies_workflow_nodes failed
        ON failed.workflow_id = run.id AND failed.number = run.error_node
      WHERE (run.status = 'PAUSED' OR run.error_code = 'COMPENSATION_FAILED')
        AND run.error_code IS NOT NULL
      ORDER BY run.sent_at
      LIMIT p_many
    )
    UNION ALL
    SELECT 'gate', run.name, run.id, gate.due_at - gate.delay, gate.due_at
    FROM (
      SELECT node.workflow_id, node.kind, node.due_at, node.delay
      FROM horsies_workflow_nodes node
      WHERE node.status = 'WAITING' AND node.finished_at IS NULL AND node.due_at IS NOT NULL
      ORDER BY node.due_at
      LIMIT p_many
    ) AS gate
    JOIN horsies_workflows run ON run.id = gate.workflow_id
    WHERE gate.kind = 'gate' AND gate.due_at < clock_timestamp() + gate.delay / 10
  ) AS found
  GROUP BY found.reason, found.name
  ORDER BY min(found.since);
END
$$;
