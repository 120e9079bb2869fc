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
      n.workflow_id AS run, n.name::text, n.kind::text,
      n.task_name::text, n.queue_name::text,
      n.kwargs, n.inputs, n.over, n.value, n.undo, n.codec::text,
      -- A workflow that has started is a run of its own.
      CASE WHEN n.task_id IS NULL THEN n.graph -> 'nodes' END AS inside
    FROM horsies_workflow_nodes n
    WHERE n.workflow_id = ANY (p_runs) AND n.finished_at IS NULL
    UNION ALL
    SELECT
      o.run, concat_ws(' / ', o.name, i.name), i.kind,
      i.task, i.queue,
      i.kwargs, i.inputs, i."over", i.value, i.undo, i.codec,
      i.graph -> 'nodes'
    FROM open o
    CROSS JOIN LATERAL jsonb_to_recordset(o.inside) AS i (
      name text, kind text, task text, queue text, kwargs jsonb, inputs jsonb, "over" text,
      value jsonb, undo jsonb, codec text, graph jsonb)
  ),
  made AS (
    SELECT
      o.run, o.name, o.task_name AS task, o.queue_name AS queue, false AS undo, o.codec,
      coalesce((
        SELECT jsonb_object_agg(k.name, 'constant')
        FROM jsonb_object_keys(o.kwargs) AS k (name)
      ), '{}')
      || coalesce((
        SELECT jsonb_object_agg(i.key, i.value ->> 'as')
        FROM jsonb_each(o.inputs) AS i
      ), '{}')
      || CASE WHEN o.over IS NULL THEN '{}' ELSE jsonb_build_object(o.over, 'elements') END
        AS given,
      (CASE
        WHEN o.over IS NOT NULL AND o.value -> 0 IS NOT NULL
          THEN o.kwargs || jsonb_build_object(o.over, o.value -> 0)
        ELSE o.kwargs
      END)::text AS constants
    FROM open o
    WHERE o.task_name <> '' AND o.kind <> 'undo'
    UNION ALL
    SELECT
      u.run, u.name, u.undo ->> 'task', u.undo ->> 'queue', true, u.undo ->> 'codec',
      coalesce((
        SELECT jsonb_object_agg(p.name, 'undo')
        FROM jsonb_array_elements_text(u.undo -> 'parameters') AS p (name)
      ), '{}'),
      NULL
    FROM (
      SELECT o.run, o.name, o.undo
      FROM open o
      WHERE o.undo IS NOT NULL
      UNION ALL
      SELECT n.workflow_id, n.name, n.undo
      FROM horsies_workflow_nodes n
      WHERE n.workflow_id = ANY (p_runs)
        AND n.finished_at IS NOT NULL
        AND n.undo IS NOT NULL
        AND n.status <> 'SKIPPED'
    ) AS u
  ),
  counted AS (
    SELECT
      m.task, m.queue, m.undo, m.codec, m.given, m.run,
      count(*) AS nodes,
      min(m.name) AS name,
      min(m.constants COLLATE "C") AS first,
      max(m.constants COLLATE "C") AS last
    FROM made m
    GROUP BY m.task, m.queue, m.undo, m.codec, m.given, m.run
  )
  SELECT
    c.task, c.queue, c.undo, c.codec, c.given::text,
    sum(c.nodes)::bigint,
    array_agg(c.run),
    min(ARRAY[c.run::text, c.name]),
    min(c.first),
    max(c.last)
  FROM counted c
  GROUP BY c.task, c.queue, c.undo, c.codec, c.given
  ORDER BY 8
$$;
