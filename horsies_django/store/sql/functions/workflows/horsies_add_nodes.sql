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
    FROM jsonb_to_recordset(p_nodes) AS new_node (
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
      p_workflow, new_node.number, p_added_by, new_node.name, new_node.kind,
      CASE
        WHEN p_added_by >= 0 THEN 'ADDED'
        WHEN new_node.kind = 'input' THEN 'COMPLETED'
        WHEN jsonb_array_length(new_node.after) > 0 THEN 'PENDING'
        WHEN new_node.rule = 'failed' THEN 'SKIPPED'
        ELSE 'READY'
      END,
      coalesce(new_node.task, ''), coalesce(new_node.queue, ''), coalesce(new_node.lane, ''),
      coalesce(new_node.priority, 100), coalesce(new_node.max_retries, 0),
      new_node.options, coalesce(new_node.kwargs, '{}'), new_node.inputs, new_node.over,
      new_node.graph,
      CASE
        WHEN new_node.kind = 'input'
        THEN coalesce(p_values -> new_node.name, new_node.value, 'null')
        ELSE new_node.value
      END,
      coalesce(new_node.rule, 'all'), new_node.needs, coalesce(new_node.allow_failed, false),
      new_node.when_node, new_node.when_path, new_node.delay,
      coalesce(new_node.good_until, v_now + new_node.good_for),
      coalesce(jsonb_array_length(new_node.after), 0)
        - coalesce(jsonb_array_length(new_node.uncounted), 0),
      coalesce(jsonb_array_length(new_node.after), 0), 0, 0, 0, 0, 0, 0,
      new_node.signal, new_node.signal_key, new_node.signal_type, new_node.due_at,
      coalesce(new_node.is_wait, false), new_node.on_timeout, new_node.permission,
      new_node.undo, new_node.codec,
      CASE
        WHEN p_added_by < 0
          AND (new_node.kind = 'input' OR new_node.rule = 'failed' AND new_node.after IS NULL)
        THEN v_now
      END
    FROM node new_node
    ON CONFLICT (workflow_id, added_by, name) WHERE name IS NOT NULL DO NOTHING
    RETURNING number
  ), connected AS (
    INSERT INTO horsies_workflow_edges (workflow_id, upstream, downstream, counts)
    SELECT
      p_workflow, edge.upstream::bigint, new_node.number,
      new_node.uncounted IS NULL OR NOT new_node.uncounted @> to_jsonb(edge.upstream::bigint)
    FROM node new_node
    JOIN inserted added_node ON added_node.number = new_node.number
    CROSS JOIN LATERAL jsonb_array_elements_text(new_node.after) AS edge (upstream)
    ON CONFLICT DO NOTHING
  )
  SELECT coalesce(array_agg(added_node.number), '{}')
  INTO v_numbers
  FROM inserted added_node;

  RETURN v_numbers;
END
$$;
