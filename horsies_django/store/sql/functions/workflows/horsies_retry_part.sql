-- Does part of a retry, about p_many nodes and p_many of their tasks: those that failed, and those that were skipped because of them, not
-- by a person, are to join the run anew. One that was reached keeps its finished_at until its tasks are replaced and all that was skipped
-- because of it was reached. retrying of the run: the number of the node from which on failed ones are still to be looked for; NULL: all is
-- done.
-- p_moved: nodes that ended meanwhile. Those that failed run again, too; horsies_propagate will decide about nodes that wait for one of
-- them, when it admits them. begun: child runs are retried, as the last of all.
-- Nodes are joined as in horsies_propagate and horsies_has_failed_upstream.
-- Moves FAILED, CANCELLED, EXPIRED, SKIPPED, PENDING -> ADDED, then as horsies_retry_children.
-- Locks: task rows, rows of child runs; the caller holds the lock of the run. Index: primary keys, horsies_workflow_nodes_added.
CREATE OR REPLACE FUNCTION horsies_retry_part(p_run horsies_workflows, p_moved bigint[], p_many int, p_now timestamptz,
                                   OUT retrying bigint, OUT begun boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  c_all CONSTANT bigint := 9223372036854775807;
  v_reached bigint[];
  v_failed bigint[];
  v_again bigint[];
  v_joined bigint[];
  v_many int;
  v_children record;
BEGIN
  retrying := p_run.retrying;
  begun := false;
  v_reached := ARRAY(
    SELECT n.number FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_run.id AND n.status = 'ADDED' AND n.finished_at IS NOT NULL LIMIT p_many);
  v_many := p_many - cardinality(v_reached);
  IF retrying < c_all AND v_many > 0 THEN
    v_failed := ARRAY(
      SELECT n.number FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_run.id AND n.number >= retrying AND n.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
      ORDER BY n.number LIMIT v_many);
    retrying := CASE WHEN cardinality(v_failed) < v_many THEN c_all ELSE v_failed[v_many] + 1 END;
    v_reached := v_reached || v_failed;
  END IF;
  IF p_moved <> '{}' THEN
    WITH final AS MATERIALIZED (SELECT p_run.id AS workflow_id, unnest(p_moved) AS number)
    UPDATE horsies_workflow_nodes d SET status = 'ADDED'
    FROM final f JOIN horsies_workflow_edges e ON e.workflow_id = f.workflow_id AND e.upstream = f.number
    WHERE d.workflow_id = e.workflow_id AND d.number = e.downstream AND d.status = 'PENDING';
    WITH final AS MATERIALIZED (SELECT p_run.id AS workflow_id, unnest(p_moved) AS number)
    SELECT v_reached || coalesce(array_agg(n.number), '{}') INTO v_reached
    FROM final f JOIN horsies_workflow_nodes n ON n.workflow_id = f.workflow_id AND n.number = f.number
    WHERE n.status IN ('FAILED', 'CANCELLED', 'EXPIRED');
  END IF;
  WITH RECURSIVE again (number) AS (
    SELECT unnest(v_reached)
    UNION
    SELECT d.number FROM again a CROSS JOIN LATERAL (
      SELECT e.workflow_id, e.downstream FROM horsies_workflow_edges e
      WHERE e.workflow_id = p_run.id AND e.upstream = a.number OFFSET 0) AS e
    CROSS JOIN LATERAL (
      SELECT n.number FROM horsies_workflow_nodes n
      WHERE n.workflow_id = e.workflow_id AND n.number = e.downstream AND n.status = 'SKIPPED'
        AND n.error_code IS DISTINCT FROM 'SKIPPED_BY_HAND' OFFSET 0) AS d
  )
  SELECT coalesce(array_agg(l.number), '{}') INTO v_again  -- the LIMIT ends the search; it lets some be reached each time
  FROM (SELECT a.number FROM again a LIMIT greatest(p_many, cardinality(v_reached) + p_many / 2)) AS l;
  WITH again AS MATERIALIZED (
    SELECT p_run.id AS workflow_id, unnest(v_again) AS number
  )
  UPDATE horsies_workflow_nodes n
  SET status = 'ADDED', items_ok = 0, items_bad = 0, in_flight = 0, expanded = CASE WHEN n.kind = 'map' THEN coalesce(n.total, 0) ELSE 1 END
  FROM again a WHERE n.workflow_id = a.workflow_id AND n.number = a.number AND n.status <> 'ADDED';
  v_joined := horsies_replace_tasks(p_run.id, v_again, p_many);
  WITH again AS MATERIALIZED (
    SELECT p_run.id AS workflow_id, unnest(v_joined || p_moved) AS number
  ), others AS MATERIALIZED (  -- nodes that keep their status
    SELECT DISTINCT n.workflow_id, n.number
    FROM again a CROSS JOIN LATERAL (
      SELECT e.workflow_id, e.downstream FROM horsies_workflow_edges e WHERE e.workflow_id = a.workflow_id AND e.upstream = a.number OFFSET 0) AS e
    CROSS JOIN LATERAL (
      SELECT n.workflow_id, n.number FROM horsies_workflow_nodes n
      WHERE n.workflow_id = e.workflow_id AND n.number = e.downstream AND n.status <> 'ADDED' OFFSET 0) AS n
  ), counted AS MATERIALIZED (
    SELECT o.workflow_id, o.number, count(*) FILTER (WHERE u.finished_at IS NULL)::int AS open,
           count(*) FILTER (WHERE u.counts AND u.status = 'COMPLETED')::int AS ok,
           count(*) FILTER (WHERE u.counts AND u.finished_at IS NOT NULL AND u.status <> 'COMPLETED')::int AS bad
    FROM others o CROSS JOIN LATERAL (
      SELECT e.counts, u.* FROM horsies_workflow_edges e CROSS JOIN LATERAL (
        SELECT u.status, u.finished_at FROM horsies_workflow_nodes u WHERE u.workflow_id = e.workflow_id AND u.number = e.upstream OFFSET 0) AS u
      WHERE e.workflow_id = o.workflow_id AND e.downstream = o.number OFFSET 0) AS u
    GROUP BY o.workflow_id, o.number
  )
  UPDATE horsies_workflow_nodes n SET open = c.open, ok = c.ok, bad = c.bad
  FROM counted c WHERE n.workflow_id = c.workflow_id AND n.number = c.number;
  IF retrying = c_all AND NOT EXISTS (
    SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_run.id AND n.status = 'ADDED' AND n.finished_at IS NOT NULL) THEN
    v_children := horsies_retry_children(p_run.id, p_many, p_now);
    begun := v_children.begun;
    retrying := CASE WHEN v_children.more THEN c_all END;
  END IF;
  UPDATE horsies_workflows w SET retrying = horsies_retry_part.retrying WHERE w.id = p_run.id;
END
$$;
