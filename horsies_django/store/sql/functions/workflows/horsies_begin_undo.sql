-- Adds to a run the nodes that undo its nodes: one for each node with an undo that has begun.
-- The undo of a node waits for the undos of all its descendants, also of nodes that its task added;
-- edges lead only to the nearest ones that are undone.
--
-- Returns: the number of nodes that were added.
-- Moves: nodes (none) -> ADDED; horsies_propagate decides about them.
-- Locks: none but the new rows; the caller holds the lock of the run.
-- Index: primary keys, horsies_workflow_nodes_grown, horsies_tasks_node.
CREATE OR REPLACE FUNCTION horsies_begin_undo(p_workflow uuid) RETURNS int LANGUAGE sql VOLATILE
SET enable_nestloop = off AS $$
  WITH RECURSIVE begun AS MATERIALIZED (
    SELECT o.number, o.name, o.how, o.total, horsies_new_number(p_workflow) AS undo
    FROM (
      SELECT
        n.number,
        n.name,
        n.undo AS how,
        (
          SELECT
            greatest(
              (
                SELECT t.node_index
                FROM horsies_tasks t
                WHERE t.workflow_id = p_workflow
                  AND t.node = n.number
                  AND horsies_has_begun(t.id, t.status, t.error_code)
                ORDER BY t.node_index DESC
                LIMIT 1
              ),
              max(r.key::int)
            ) + 1
          FROM jsonb_object_keys(n.undo -> 'begun') AS r (key)
        ) AS total  -- the last place that has begun, plus one
      FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_workflow AND n.undo IS NOT NULL
      OFFSET 0
    ) AS o
    WHERE o.total IS NOT NULL
  ), reached (ancestor, number, undo) AS (
    -- undo: of a descendant that is undone itself, at which the search ends
    SELECT b.undo, b.number, NULL::bigint
    FROM begun b
    UNION
    SELECT r.ancestor, d.number, b.undo
    FROM reached r
    CROSS JOIN LATERAL (
      SELECT e.downstream AS number
      FROM horsies_workflow_edges e
      WHERE e.workflow_id = p_workflow AND e.upstream = r.number
      UNION ALL
      SELECT n.number
      FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_workflow AND n.added_by = r.number AND n.added_by >= 0
    ) AS d
    LEFT JOIN begun b ON b.number = d.number
    WHERE r.undo IS NULL
  ), connected AS (
    INSERT INTO horsies_workflow_edges (workflow_id, upstream, downstream)
    SELECT p_workflow, r.undo, r.ancestor
    FROM reached r
    WHERE r.undo IS NOT NULL
  ), added AS (
    INSERT INTO horsies_workflow_nodes (
      workflow_id, number, added_by, name, kind, status,
      task_name, queue_name, lane, priority, max_retries, options, kwargs,
      rule, allow_failed, open, total, undoes, codec
    )
    SELECT
      p_workflow, b.undo, -2 - b.number, left('undo ' || b.name, 200), 'undo', 'ADDED',
      u.task, u.queue, u.lane, u.priority, u.max_retries, u.options, '{}',
      'all', true, 0, b.total, b.number, u.codec
    FROM begun b
    CROSS JOIN LATERAL jsonb_to_record(b.how) AS u (
      task text, queue text, lane text, priority smallint, max_retries int, options jsonb,
      codec text
    )
    RETURNING number
  )
  SELECT count(*)::int FROM added
$$;
