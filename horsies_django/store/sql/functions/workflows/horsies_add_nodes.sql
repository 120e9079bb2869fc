-- Inserts nodes of a run, with their edges.
-- Nodes without upstream nodes are READY, the others PENDING, and inputs COMPLETED. A node that
-- runs after a failure is SKIPPED in a batch without members. Nodes that a running task adds are
-- all ADDED: they are counted when the run is advanced, under its lock. A node whose name this
-- adder has used already is not inserted again.
--
-- Args: p_added_by is the node whose running task adds these, -1 for the graph that was sent.
-- p_nodes is a list of objects as Node.json() in workflows/nodes.py writes them; "after" has the
-- upstream nodes, and "uncounted" has those of them that the quorum of the node does not count.
-- p_values has the values of inputs, by name. good_for counts from p_now.
-- Returns: the numbers of the inserted nodes.
-- Moves: nodes (none) -> READY, PENDING, COMPLETED, SKIPPED, ADDED.
-- Locks: none but the new rows.
-- Index: horsies_workflow_nodes_named.
CREATE OR REPLACE FUNCTION horsies_add_nodes(
  p_workflow uuid, p_added_by bigint, p_nodes jsonb, p_values jsonb, p_now timestamptz
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_numbers bigint[];
BEGIN
  WITH node AS MATERIALIZED (
    SELECT *
    FROM jsonb_to_recordset(p_nodes) AS n (
      number bigint, name text, kind text,
      task text, queue text, lane text, priority smallint, max_retries smallint, options jsonb,
      kwargs jsonb, inputs jsonb, "over" text, graph jsonb, value jsonb,
      rule text, needs int, allow_failed boolean,
      when_node bigint, when_path text,
      delay interval, good_until timestamptz, good_for interval,
      after jsonb, uncounted jsonb,
      signal text, signal_key text, signal_type text,
      due_at timestamptz, is_wait boolean, on_timeout text, permission text,
      undo jsonb, codec text
    )
  ), inserted AS (
    INSERT INTO horsies_workflow_nodes (
      workflow_id, number, added_by, name, kind,
      status,
      task_name, queue_name, lane, priority, max_retries,
      options, kwargs, inputs, over, graph,
      value,
      rule, needs, allow_failed, when_node, when_path, delay,
      good_until,
      branches,
      open, ok, bad, expanded, in_flight, items_ok, items_bad,
      signal, signal_key, signal_type, due_at, is_wait, on_timeout, permission, undo, codec,
      finished_at
    )
    SELECT
      p_workflow, n.number, p_added_by, n.name, n.kind,
      CASE
        WHEN p_added_by >= 0 THEN 'ADDED'
        WHEN n.kind = 'input' THEN 'COMPLETED'
        WHEN jsonb_array_length(n.after) > 0 THEN 'PENDING'
        WHEN n.rule = 'failed' THEN 'SKIPPED'
        ELSE 'READY'
      END,
      coalesce(n.task, ''), coalesce(n.queue, ''), coalesce(n.lane, ''),
      coalesce(n.priority, 100), coalesce(n.max_retries, 0),
      n.options, coalesce(n.kwargs, '{}'), n.inputs, n.over, n.graph,
      CASE
        WHEN n.kind = 'input' THEN coalesce(p_values -> n.name, n.value, 'null')
        ELSE n.value
      END,
      coalesce(n.rule, 'all'), n.needs, coalesce(n.allow_failed, false),
      n.when_node, n.when_path, n.delay,
      coalesce(n.good_until, v_now + n.good_for),
      coalesce(jsonb_array_length(n.after), 0) - coalesce(jsonb_array_length(n.uncounted), 0),
      coalesce(jsonb_array_length(n.after), 0), 0, 0, 0, 0, 0, 0,
      n.signal, n.signal_key, n.signal_type, n.due_at, coalesce(n.is_wait, false),
      n.on_timeout, n.permission, n.undo, n.codec,
      CASE
        WHEN p_added_by < 0 AND (n.kind = 'input' OR n.rule = 'failed' AND n.after IS NULL)
        THEN v_now
      END
    FROM node n
    ON CONFLICT (workflow_id, added_by, name) WHERE name IS NOT NULL DO NOTHING
    RETURNING number
  ), connected AS (
    INSERT INTO horsies_workflow_edges (workflow_id, upstream, downstream, counts)
    SELECT
      p_workflow, e.upstream::bigint, n.number,
      n.uncounted IS NULL OR NOT n.uncounted @> to_jsonb(e.upstream::bigint)
    FROM node n
    JOIN inserted i ON i.number = n.number
    CROSS JOIN LATERAL jsonb_array_elements_text(n.after) AS e (upstream)
    ON CONFLICT DO NOTHING
  )
  SELECT coalesce(array_agg(i.number), '{}')
  INTO v_numbers
  FROM inserted i;

  RETURN v_numbers;
END
$$;
