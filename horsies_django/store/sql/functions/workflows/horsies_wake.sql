-- Advances runs with waits whose time is over, together in one transaction: for thousands that wake
-- at the same moment, commits and notifications would take longer than the rest. Runs that another
-- transaction holds are passed over; no lock is waited for.
-- Args: p_many is the maximum of runs. Keep it below 64: an advance may take a subtransaction, of
-- which PostgreSQL keeps that many at hand.
-- Returns: a row as of horsies_advance for each run. For a run that horsies_advance_plain moved on,
-- many is 1, the flags are false, and the rest is NULL.
-- Moves: nodes and runs as horsies_advance and horsies_advance_plain.
-- Locks: rows of runs, skipping locked ones; then rows as horsies_advance.
-- Index: horsies_workflow_nodes_due, primary keys.
CREATE OR REPLACE FUNCTION horsies_wake(
  p_many int, p_limit int, p_max_bytes int, p_channel text, p_now timestamptz
) RETURNS TABLE (
  workflow uuid, busy boolean, many int, more boolean, finished boolean, parent uuid, halted text
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_runs uuid[];
  v_waiting uuid[];
  v_numbers bigint[];
  v_woken uuid[];
BEGIN
  v_runs := ARRAY(
    SELECT w.id
    FROM horsies_workflow_nodes n
    CROSS JOIN LATERAL (  -- as a join, it may read all runs for each node
      SELECT r.id
      FROM horsies_workflows r
      WHERE r.id = n.workflow_id
      FOR NO KEY UPDATE SKIP LOCKED
    ) AS w
    WHERE n.status = 'WAITING' AND n.finished_at IS NULL AND n.due_at <= v_now
    ORDER BY n.due_at
    LIMIT p_many
  );

  SELECT array_agg(n.workflow_id), array_agg(n.number)
  INTO v_waiting, v_numbers
  FROM horsies_workflow_nodes n
  WHERE n.workflow_id = ANY (v_runs)
    AND n.status = 'WAITING'
    AND n.is_wait
    AND n.finished_at IS NULL
    AND n.due_at <= v_now;

  v_woken := horsies_plain_runs(v_waiting, v_numbers, NULL, p_limit);
  IF v_woken <> '{}' THEN
    PERFORM horsies_advance_plain(
      v_woken, v_waiting, v_numbers, p_max_bytes, p_channel, p_now);
  END IF;

  RETURN QUERY
  SELECT r.id, false, 1, false, false, NULL::uuid, NULL::text
  FROM unnest(v_woken) AS r (id);

  RETURN QUERY
  SELECT r.id, a.*
  FROM (SELECT unnest(v_runs) EXCEPT SELECT unnest(v_woken)) AS r (id)
  CROSS JOIN LATERAL horsies_advance(
    r.id, '{}', '{}', p_limit, p_max_bytes, p_channel, p_now) AS a;
END
$$;
