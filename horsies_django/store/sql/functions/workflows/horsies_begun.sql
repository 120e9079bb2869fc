-- Returns what there is to undo of a node: the places of its elements from p_from to p_until, each with what its task was called with, by
-- name, its value (NULL: not known), and whether these were redacted. p_replaced: tasks by place that a retry of the run has replaced, of
-- the node's "undo"; they count where the task that replaced them has not begun.
-- Locks: none. Index: horsies_tasks_node, primary keys.
CREATE OR REPLACE FUNCTION horsies_begun(p_workflow uuid, p_number bigint, p_replaced jsonb, p_from int, p_until int)
RETURNS TABLE (place int, kwargs jsonb, value jsonb, redacted boolean) LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN QUERY
  SELECT t.node_index, CASE t.codec WHEN 'plain' THEN horsies_named_arguments(t.kwargs::jsonb) ELSE t.kwargs::jsonb END,
         CASE WHEN t.status = 'COMPLETED' THEN t.result::jsonb -> 'ok' END, t.redacted_at IS NOT NULL
  FROM horsies_tasks t
  WHERE t.workflow_id = p_workflow AND t.node = p_number AND t.node_index >= p_from AND t.node_index < p_until
    AND horsies_has_begun(t.id, t.status, t.error_code);
  IF p_replaced IS NOT NULL THEN
    RETURN QUERY
    SELECT r.key::int, CASE t.codec WHEN 'plain' THEN horsies_named_arguments(t.kwargs::jsonb) ELSE t.kwargs::jsonb END, NULL::jsonb, t.redacted_at IS NOT NULL
    FROM jsonb_each_text(p_replaced) AS r CROSS JOIN LATERAL (SELECT x.* FROM horsies_tasks x WHERE x.id = r.value::uuid OFFSET 0) AS t
    WHERE r.key::int >= p_from AND r.key::int < p_until AND NOT EXISTS (
      SELECT FROM horsies_tasks n
      WHERE n.workflow_id = p_workflow AND n.node = p_number AND n.node_index = r.key::int AND horsies_has_begun(n.id, n.status, n.error_code));
  END IF;
END
$$;
