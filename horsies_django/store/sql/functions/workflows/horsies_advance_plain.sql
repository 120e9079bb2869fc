-- Advances runs that horsies_plain_runs has returned, in a few statements for all of them.
-- The nodes in p_numbers complete and are counted at their downstream nodes, the tasks of the nodes
-- that became ready are sent, and runs of which nothing is left end. Raises an error if a task
-- cannot be sent.
--
-- Args: p_plain has the runs. p_runs and p_numbers name nodes that have completed; nodes of runs
-- that are not in p_plain are left out.
-- Returns: the queue of each task that was sent.
-- Moves: nodes ENQUEUED, WAITING (timers) -> COMPLETED; PENDING -> ENQUEUED, with their tasks; runs
-- as horsies_finish_run.
-- Locks: none but the new rows; the caller holds the locks of the runs.
-- Index: primary keys, horsies_workflow_nodes_open.
CREATE OR REPLACE FUNCTION horsies_advance_plain(
  p_plain uuid[], p_runs uuid[], p_numbers bigint[], p_max_bytes int, p_channel text,
  p_now timestamptz
) RETURNS text[] LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_nestloop = on AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_runs uuid[];
  v_numbers bigint[];
  v_sent text[];
  v_last uuid[];
BEGIN
  WITH ended AS (
    UPDATE horsies_workflow_nodes n
    SET
      status = 'COMPLETED',
      finished_at = v_now,
      value = CASE n.kind WHEN 'timer' THEN 'null' ELSE n.value END
    FROM unnest(p_runs, p_numbers) AS f (run, number)
    CROSS JOIN LATERAL horsies_address(f.run, f.number) AS a
    WHERE f.run = ANY (p_plain) AND n.ctid = a.address
    RETURNING n.workflow_id, n.number
  ), below AS MATERIALIZED (
    SELECT n.workflow_id, e.downstream AS number, count(*)::int AS many
    FROM ended n
    LEFT JOIN LATERAL (
      SELECT e.downstream
      FROM horsies_workflow_edges e
      WHERE e.workflow_id = n.workflow_id AND e.upstream = n.number
      OFFSET 0
    ) AS e ON true
    GROUP BY n.workflow_id, e.downstream
  ), judged AS MATERIALIZED (
    SELECT b.*, n.ctid, n.open = b.many AS ready, n.queue_name
    FROM below b
    CROSS JOIN LATERAL (
      SELECT n.ctid, n.*
      FROM horsies_workflow_nodes n
      WHERE n.workflow_id = b.workflow_id AND n.number = b.number
      OFFSET 0
    ) AS n
  ), waiting AS (
    UPDATE horsies_workflow_nodes n
    SET open = n.open - j.many, ok = n.ok + j.many
    FROM judged j
    WHERE n.ctid = j.ctid AND NOT j.ready
  )
  SELECT
    coalesce(array_agg(j.workflow_id), '{}'),
    coalesce(array_agg(j.number), '{}'),
    coalesce(array_agg(j.queue_name::text), '{}'),
    ARRAY(SELECT b.workflow_id FROM below b WHERE b.number IS NULL)
  INTO v_runs, v_numbers, v_sent, v_last
  FROM judged j
  WHERE j.ready;

  IF v_numbers <> '{}' THEN
    PERFORM horsies_send_all(v_runs, v_numbers, p_max_bytes, p_now);
  END IF;

  PERFORM horsies_finish_run(l.run, p_channel, p_max_bytes, v_now)
  FROM unnest(v_last) AS l (run);

  RETURN v_sent;
END
$$;
