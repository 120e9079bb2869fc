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
    SELECT
      undoable.number,
      undoable.name,
      undoable.how,
      undoable.total,
      horsies_new_number(p_workflow) AS undo
    FROM (
      SELECT
        undone_node.number,
        undone_node.name,
        undone_node.undo AS how,
        (
          SELECT
            greatest(
              (
                SELECT begun_task.node_index
                FROM horsies_tasks begun_task
                WHERE begun_task.workflow_id = p_workflow
                  AND begun_task.node = undone_node.number
                  AND horsies_has_begun(begun_task.id, begun_task.status, begun_task.error_code)
                ORDER BY begun_task.node_index DESC
                LIMIT 1
              ),
              max(place.key::int)
            ) + 1
          FROM jsonb_object_keys(undone_node.undo -> 'begun') AS place (key)
        ) AS total  -- the last place that has begun, plus one
      FROM horsies_workflow_nodes undone_node
      WHERE undone_node.workflow_id = p_workflow AND undone_node.undo IS NOT NULL
      OFFSET 0
    ) AS undoable
    WHERE undoable.total IS NOT NULL
  ), reached (ancestor, number, undo) AS (
    -- undo: of a descendant that is undone itself, at which the search ends
    SELECT undone.undo, undone.number, NULL::bigint
    FROM begun undone
    UNION
    SELECT reached_node.ancestor, descendant.number, undone.undo
    FROM reached reached_node
    CROSS JOIN LATERAL (
      SELECT edge.downstream AS number
      FROM horsies_workflow_edges edge
      WHERE edge.workflow_id = p_workflow AND edge.upstream = reached_node.number
      UNION ALL
      SELECT added_node.number
      FROM horsies_workflow_nodes added_node
      WHERE added_node.workflow_id = p_workflow
        AND added_node.added_by = reached_node.number
        AND added_node.added_by >= 0
    ) AS descendant
    LEFT JOIN begun undone ON undone.number = descendant.number
    WHERE reached_node.undo IS NULL
  ), connected AS (
    INSERT INTO horsies_workflow_edges (workflow_id, upstream, downstream)
    SELECT p_workflow, reached_node.undo, reached_node.ancestor
    FROM reached reached_node
    WHERE reached_node.undo IS NOT NULL
  ), added AS (
    INSERT INTO horsies_workflow_nodes (
      workflow_id, number, added_by, name, kind, status,
      task_name, queue_name, lane, priority, max_retries, options, kwargs,
      rule, allow_failed, open, total, undoes, codec
    )
    SELECT
      p_workflow, undone.undo, -2 - undone.number, left('undo ' || undone.name, 200), 'undo',
      'ADDED',
      undo_call.task, undo_call.queue, undo_call.lane, undo_call.priority,
      undo_call.max_retries, undo_call.options, '{}',
      'all', true, 0, undone.total, undone.number, undo_call.codec
    FROM begun undone
    CROSS JOIN LATERAL jsonb_to_record(undone.how) AS undo_call (
      task text, queue text, lane text, priority smallint, max_retries int, options jsonb,
      codec text
    )
    RETURNING number
  )
  SELECT count(*)::int FROM added
$$;
