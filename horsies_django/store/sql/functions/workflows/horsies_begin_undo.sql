-- Adds to a run the nodes that undo its nodes: one for each node with an undo that has begun. The undo of a node waits for those of all its
-- descendants, also of nodes that its task added; edges lead only to the nearest ones that are undone. Returns how many were added.
-- Moves (none) -> READY, PENDING.
-- Locks: none but the new rows; the caller holds the lock of the run. Index: primary keys, horsies_workflow_nodes_name, horsies_tasks_node.
CREATE FUNCTION horsies_begin_undo(p_workflow uuid) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_many int;
BEGIN
  WITH RECURSIVE begun AS MATERIALIZED (
    SELECT n.number, b.total
    FROM horsies_workflow_nodes n
    CROSS JOIN LATERAL (SELECT max(x.place) + 1 AS total FROM horsies_begun(p_workflow, n.number, 0, NULL) AS x) AS b
    WHERE n.workflow_id = p_workflow AND n.undo IS NOT NULL AND b.total IS NOT NULL
  ), reached (ancestor, number) AS (
    SELECT b.number, b.number FROM begun b
    UNION
    SELECT r.ancestor, d.number
    FROM reached r CROSS JOIN LATERAL (
      SELECT e.downstream AS number FROM horsies_workflow_edges e WHERE e.workflow_id = p_workflow AND e.upstream = r.number
      UNION ALL
      SELECT n.number FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.added_by = r.number
    ) AS d
    WHERE r.number = r.ancestor OR NOT EXISTS (SELECT FROM begun b WHERE b.number = r.number)
  ), waits AS MATERIALIZED (
    SELECT r.ancestor AS number, r.number AS descendant FROM reached r JOIN begun b ON b.number = r.number WHERE r.number <> r.ancestor
  ), added AS (
    INSERT INTO horsies_workflow_nodes (
      workflow_id, number, added_by, name, kind, status, task_name, queue_name, lane, priority, max_retries, options, kwargs, rule,
      allow_failed, open, total, undoes)
    SELECT p_workflow, nextval('horsies_workflow_node_numbers'), -2 - n.number, left('undo ' || n.name, 200), 'undo',
           CASE WHEN w.many = 0 THEN 'READY' ELSE 'PENDING' END, u.task, u.queue, u.lane, u.priority, u.max_retries, u.options, '{}', 'all',
           true, w.many, b.total, n.number
    FROM begun b
    JOIN horsies_workflow_nodes n ON n.workflow_id = p_workflow AND n.number = b.number
    CROSS JOIN LATERAL jsonb_to_record(n.undo) AS u (task text, queue text, lane text, priority smallint, max_retries int, options jsonb)
    CROSS JOIN LATERAL (SELECT count(*)::int AS many FROM waits x WHERE x.number = b.number) AS w
    RETURNING number, undoes
  ), connected AS (
    INSERT INTO horsies_workflow_edges (workflow_id, upstream, downstream)
    SELECT p_workflow, u.number, d.number
    FROM waits w JOIN added u ON u.undoes = w.descendant JOIN added d ON d.undoes = w.number
  )
  SELECT count(*) INTO v_many FROM added;
  RETURN v_many;
END
$$;
