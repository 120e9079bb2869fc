-- Groups the calls that runs still have to make by task, queue and arguments: the calls of open
-- nodes, of the nodes inside workflows that have not started, and of undos. A run's own failed
-- nodes, which a retry would call again, are not among them.
-- Returns: given is a JSON object with the source of each argument: "constant", "elements" (of the
-- list of a map), "undo" or the "as" of its input. nodes is their number, in runs. node is the run
-- and the name of one of them. first and last are, by the order of their text, constants of the
-- group; the constants of a map contain its first element.
-- Index: horsies_workflow_nodes_open, primary keys.
CREATE OR REPLACE FUNCTION horsies_open_calls(p_runs uuid[])
RETURNS TABLE (
  task text, queue text, undo boolean, codec text, given text, nodes bigint, runs uuid[],
  node text[], first text, last text
) LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
  WITH RECURSIVE open AS (
    SELECT
      node.workflow_id AS run, node.name::text, node.kind::text,
      node.task_name::text, node.queue_name::text,
      node.kwargs, node.inputs, node.over, node.value, node.undo, node.codec::text,
      -- A workflow that has started is a run of its own.
      CASE WHEN node.task_id IS NULL THEN node.graph -> 'nodes' END AS inside
    FROM horsies_workflow_nodes node
    WHERE node.workflow_id = ANY (p_runs) AND node.finished_at IS NULL
    UNION ALL
    SELECT
      outer_node.run, concat_ws(' / ', outer_node.name, inner_node.name), inner_node.kind,
      inner_node.task, inner_node.queue,
      inner_node.kwargs, inner_node.inputs, inner_node."over", inner_node.value, inner_node.undo,
      inner_node.codec,
      inner_node.graph -> 'nodes'
    FROM open outer_node
    CROSS JOIN LATERAL jsonb_to_recordset(outer_node.inside) AS inner_node (
      name text, kind text, task text, queue text, kwargs jsonb, inputs jsonb, "over" text,
      value jsonb, undo jsonb, codec text, graph jsonb)
  ),
  made AS (
    SELECT
      open_node.run, open_node.name,
      open_node.task_name AS task, open_node.queue_name AS queue, false AS undo, open_node.codec,
      coalesce((
        SELECT jsonb_object_agg(argument.name, 'constant')
        FROM jsonb_object_keys(open_node.kwargs) AS argument (name)
      ), '{}')
      || coalesce((
        SELECT jsonb_object_agg(node_input.key, node_input.value ->> 'as')
        FROM jsonb_each(open_node.inputs) AS node_input
      ), '{}')
      || CASE
        WHEN open_node.over IS NULL THEN '{}'
        ELSE jsonb_build_object(open_node.over, 'elements')
      END AS given,
      (CASE
        WHEN open_node.over IS NOT NULL AND open_node.value -> 0 IS NOT NULL
          THEN open_node.kwargs || jsonb_build_object(open_node.over, open_node.value -> 0)
        ELSE open_node.kwargs
      END)::text AS constants
    FROM open open_node
    WHERE open_node.task_name <> '' AND open_node.kind <> 'undo'
    UNION ALL
    SELECT
      undoable.run, undoable.name,
      undoable.undo ->> 'task', undoable.undo ->> 'queue', true, undoable.undo ->> 'codec',
      coalesce((
        SELECT jsonb_object_agg(undo_parameter.name, 'undo')
        FROM jsonb_array_elements_text(undoable.undo -> 'parameters') AS undo_parameter (name)
      ), '{}'),
      NULL
    FROM (
      SELECT open_node.run, open_node.name, open_node.undo
      FROM open open_node
      WHERE open_node.undo IS NOT NULL
      UNION ALL
      SELECT finished_node.workflow_id, finished_node.name, finished_node.undo
      FROM horsies_workflow_nodes finished_node
      WHERE finished_node.workflow_id = ANY (p_runs)
        AND finished_node.finished_at IS NOT NULL
        AND finished_node.undo IS NOT NULL
        AND finished_node.status <> 'SKIPPED'
    ) AS undoable
  ),
  counted AS (
    SELECT
      made_call.task, made_call.queue, made_call.undo, made_call.codec, made_call.given,
      made_call.run,
      count(*) AS nodes,
      min(made_call.name) AS name,
      min(made_call.constants COLLATE "C") AS first,
      max(made_call.constants COLLATE "C") AS last
    FROM made made_call
    GROUP BY
      made_call.task, made_call.queue, made_call.undo, made_call.codec, made_call.given,
      made_call.run
  )
  SELECT
    run_group.task, run_group.queue, run_group.undo, run_group.codec, run_group.given::text,
    sum(run_group.nodes)::bigint,
    array_agg(run_group.run),
    min(ARRAY[run_group.run::text, run_group.name]),
    min(run_group.first),
    max(run_group.last)
  FROM counted run_group
  GROUP BY run_group.task, run_group.queue, run_group.undo, run_group.codec, run_group.given
  ORDER BY 8
$$;
