-- Returns what there is to undo of a node: the places of its elements from p_from to p_until (NULL: all), each with its task. A task that
-- a retry of the run has replaced counts if the one that replaced it has not begun; the node's "undo" names it under "begun".
-- Locks: none. Index: horsies_tasks_node, primary keys.
CREATE FUNCTION horsies_begun(p_workflow uuid, p_number bigint, p_from int, p_until int) RETURNS TABLE (place int, task uuid)
LANGUAGE sql STABLE AS $$
  SELECT DISTINCT ON (b.place) b.place, b.task
  FROM (
    SELECT t.node_index AS place, t.id AS task, false AS replaced FROM horsies_tasks t
    WHERE t.workflow_id = p_workflow AND t.node = p_number AND t.node_index >= p_from AND (p_until IS NULL OR t.node_index < p_until)
      AND horsies_has_begun(t.id, t.status, t.error_code)
    UNION ALL
    SELECT r.key::int, r.value::uuid, true
    FROM horsies_workflow_nodes n CROSS JOIN LATERAL jsonb_each_text(n.undo -> 'begun') AS r
    WHERE n.workflow_id = p_workflow AND n.number = p_number AND r.key::int >= p_from AND (p_until IS NULL OR r.key::int < p_until)
  ) AS b
  ORDER BY b.place, b.replaced
$$;
