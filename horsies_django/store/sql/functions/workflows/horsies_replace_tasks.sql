-- Takes the tasks of nodes that are to run again from them, from the last element of a map on, p_many at most: expanded is how many are
-- left. Maps and undos keep their completed elements. Tasks that had begun are noted in undo. Nodes join the run anew once their tasks are
-- replaced, stop no partition any more, and no node downstream is skipped but by a person; then nodes downstream that do not run again,
-- also of p_moved, nodes that ended meanwhile, are told so.
-- Moves none: the nodes are ADDED, with finished_at until they join.
-- Locks: task rows; the caller holds the lock of the run. Index: primary keys, horsies_tasks_node, horsies_workflow_edges_up.
CREATE OR REPLACE FUNCTION horsies_replace_tasks(p_workflow uuid, p_numbers bigint[], p_moved bigint[], p_many int) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_joined bigint[];
  v_queues text[];
  v_keys text[];
BEGIN
  WITH parts AS MATERIALIZED (
    SELECT n.ctid, n.number, n.kind, n.undo IS NOT NULL AS undone, n.expanded AS until,
           greatest(n.expanded - greatest(p_many - sum(n.expanded) OVER (ORDER BY n.number) + n.expanded, 0), 0)::int AS since
    FROM unnest(p_numbers) AS a (number) CROSS JOIN LATERAL (
      SELECT n.ctid, n.* FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.number = a.number OFFSET 0) AS n
  ), had AS MATERIALIZED (
    SELECT p.ctid, p.number, p.since, t.id, t.node_index, t.order_stop, t.queue_name, t.partition_key, t.advanced_at IS NOT NULL AS counted,
           p.kind IN ('map', 'undo') AND (t.status = 'COMPLETED' OR t.error_code IS NOT DISTINCT FROM 'TASK_SKIPPED') AS kept,
           p.undone AND t.status <> 'COMPLETED' AND horsies_has_begun(t.id, t.status, t.error_code) AS begun
    FROM parts p
    LEFT JOIN LATERAL (  -- not a join, which may read all tasks of the run for each node
      SELECT x.* FROM horsies_tasks x
      WHERE x.workflow_id = p_workflow AND x.node = p.number AND x.node_index >= p.since AND x.node_index < p.until OFFSET 0) AS t ON true
  ), replaced AS (
    UPDATE horsies_tasks t SET node = NULL, order_stop = NULL WHERE t.id = ANY (ARRAY(SELECT h.id FROM had h WHERE NOT h.kept))
  ), nodes AS MATERIALIZED (
    SELECT h.ctid, h.since, count(*) FILTER (WHERE h.kept AND h.counted)::int AS ok,
           jsonb_object_agg(h.node_index, h.id) FILTER (WHERE h.begun) AS begun,
           h.since = 0 AND NOT EXISTS (SELECT FROM horsies_downstream(p_workflow, h.number) AS d
                                       WHERE d.status = 'SKIPPED' AND d.error_code IS DISTINCT FROM 'SKIPPED_BY_HAND') AS joins
    FROM had h GROUP BY h.ctid, h.number, h.since
  ), joined AS (
    UPDATE horsies_workflow_nodes n
    SET finished_at = CASE WHEN NOT h.joins THEN n.finished_at END, error_code = NULL, error = NULL,
        due_at = CASE WHEN n.delay IS NULL THEN n.due_at END,
        items_ok = n.items_ok + h.ok, expanded = h.since, task_id = CASE WHEN n.kind = 'workflow' THEN n.task_id END,
        undo = CASE WHEN h.begun IS NULL THEN n.undo ELSE jsonb_set(n.undo, '{begun}', coalesce(n.undo -> 'begun', '{}') || h.begun) END
    FROM nodes h WHERE n.ctid = h.ctid
    RETURNING n.number, h.joins
  )
  SELECT coalesce(array_agg(j.number) FILTER (WHERE j.joins), '{}'), (SELECT array_agg(h.queue_name::text) FROM had h WHERE h.order_stop IS NOT NULL),
         (SELECT array_agg(h.partition_key) FROM had h WHERE h.order_stop IS NOT NULL)
  INTO v_joined, v_queues, v_keys FROM joined j;
  PERFORM horsies_unpark_next(v_queues, v_keys, horsies_channel());
  UPDATE horsies_workflow_nodes n SET open = c.open, ok = c.ok, bad = c.bad
  FROM (SELECT DISTINCT d.number FROM unnest(v_joined || p_moved) AS j (number)
        CROSS JOIN LATERAL horsies_downstream(p_workflow, j.number) AS d WHERE d.status <> 'ADDED') AS o  -- they keep their status
  CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE u.finished_at IS NULL)::int AS open,
           count(*) FILTER (WHERE u.counts AND u.status = 'COMPLETED')::int AS ok,
           count(*) FILTER (WHERE u.counts AND u.finished_at IS NOT NULL AND u.status <> 'COMPLETED')::int AS bad
    FROM horsies_upstream(p_workflow, o.number) AS u) AS c
  CROSS JOIN LATERAL horsies_address(p_workflow, o.number) AS a
  WHERE n.ctid = a.address;
END
$$;
