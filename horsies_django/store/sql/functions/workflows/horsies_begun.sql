-- Returns the elements of a node that can be undone.
--
-- Args: p_from is the first place, p_until the place after the last one. p_replaced has tasks, by
-- place, that a retry of the run has replaced, from the "undo" of the node; such a task counts
-- where the task that replaced it has not begun.
-- Returns: a row for each place with the arguments of its task by name, its value (NULL if it is
-- not known), and whether these were redacted.
-- Index: horsies_tasks_node, primary keys.
CREATE OR REPLACE FUNCTION horsies_begun(
  p_workflow uuid, p_number bigint, p_replaced jsonb, p_from int, p_until int
) RETURNS TABLE (place int, kwargs jsonb, value jsonb, redacted boolean) LANGUAGE sql STABLE AS $$
  SELECT DISTINCT ON (b.place)
    b.place,
    CASE t.codec
      WHEN 'plain' THEN horsies_named_arguments(t.kwargs::jsonb)
      ELSE t.kwargs::jsonb
    END,
    CASE WHEN t.status = 'COMPLETED' THEN t.result::jsonb -> 'ok' END,
    t.redacted_at IS NOT NULL
  FROM (
    SELECT x.node_index AS place, x.id, false AS replaced
    FROM horsies_tasks x
    WHERE x.workflow_id = p_workflow
      AND x.node = p_number
      AND x.node_index >= p_from
      AND x.node_index < p_until
      AND horsies_has_begun(x.id, x.status, x.error_code)
    UNION ALL
    SELECT r.key::int, r.value::uuid, true
    FROM jsonb_each_text(p_replaced) AS r
    WHERE r.key::int >= p_from AND r.key::int < p_until
  ) AS b
  CROSS JOIN LATERAL (
    SELECT x.*
    FROM horsies_tasks x
    WHERE x.id = b.id
    OFFSET 0
  ) AS t
  ORDER BY b.place, b.replaced
$$;
