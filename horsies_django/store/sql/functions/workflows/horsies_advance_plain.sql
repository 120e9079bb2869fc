-- Advances plain runs, which horsies_plain_runs returns: runs in which only counters and sends have
-- to be updated. A few statements do so for all of them.
-- The nodes in p_numbers complete. Their downstream nodes have one open upstream node less; the
-- tasks of those that have none left are sent. Runs without unfinished nodes end. Raises an error
-- if a task cannot be sent.
--
-- Args: p_plain has the runs. p_runs and p_numbers name nodes that have completed; nodes of runs
-- that are not in p_plain are left out.
-- Returns: the queue of each task that was sent.
-- Moves: nodes ENQUEUED, WAITING (timers) -> COMPLETED; PENDING -> ENQUEUED, with their tasks; runs
-- as horsies_finish_run.
-- Locks: the rows of the nodes; the caller holds the locks of the runs, so nobody else has them.
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
    UPDATE horsies_workflow_nodes node
    SET
      status = 'COMPLETED',
      finished_at = v_now,
      value = CASE node.kind WHEN 'timer' THEN 'null' ELSE node.value END
    FROM unnest(p_runs, p_numbers) AS completed (run, number)
    CROSS JOIN LATERAL horsies_address(completed.run, completed.number) AS node_row
    WHERE completed.run = ANY (p_plain) AND node.ctid = node_row.address
    RETURNING node.workflow_id, node.number
  ), below AS MATERIALIZED (
    SELECT ended_node.workflow_id, outgoing.downstream AS number, count(*)::int AS many
    FROM ended ended_node
    LEFT JOIN LATERAL (
      SELECT edge.downstream
      FROM horsies_workflow_edges edge
      WHERE edge.workflow_id = ended_node.workflow_id AND edge.upstream = ended_node.number
      OFFSET 0
    ) AS outgoing ON true
    GROUP BY ended_node.workflow_id, outgoing.downstream
  ), judged AS MATERIALIZED (
    SELECT reached.*, target.ctid, target.open = reached.many AS ready, target.queue_name
    FROM below reached
    CROSS JOIN LATERAL (
      SELECT node.ctid, node.*
      FROM horsies_workflow_nodes node
      WHERE node.workflow_id = reached.workflow_id AND node.number = reached.number
      OFFSET 0
    ) AS target
  ), waiting AS (
    UPDATE horsies_workflow_nodes node
    SET open = node.open - downstream_node.many, ok = node.ok + downstream_node.many
    FROM judged downstream_node
    WHERE node.ctid = downstream_node.ctid AND NOT downstream_node.ready
  )
  SELECT
    coalesce(array_agg(downstream_node.workflow_id), '{}'),
    coalesce(array_agg(downstream_node.number), '{}'),
    coalesce(array_agg(downstream_node.queue_name::text), '{}'),
    ARRAY(SELECT leaf.workflow_id FROM below leaf WHERE leaf.number IS NULL)
  INTO v_runs, v_numbers, v_sent, v_last
  FROM judged downstream_node
  WHERE downstream_node.ready;

  IF v_numbers <> '{}' THEN
    PERFORM horsies_send_all(v_runs, v_numbers, p_max_bytes, p_now);
  END IF;

  PERFORM horsies_finish_run(l.run, p_channel, p_max_bytes, v_now)
  FROM unnest(v_last) AS l (run);

  RETURN v_sent;
END
$$;
