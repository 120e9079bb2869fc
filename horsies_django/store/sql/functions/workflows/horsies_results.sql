-- Returns the results of upstream nodes in order, for a list of nodes or for a map: those at the places from p_from on, p_many at most.
-- Locks: none. Index: primary keys, horsies_tasks_node.
CREATE FUNCTION horsies_results(p_workflow uuid, p_spec jsonb, p_from int, p_many int)
RETURNS TABLE (place int, status text, result jsonb, redacted boolean) LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  IF p_spec ? 'nodes' THEN
    RETURN QUERY
    SELECT (n.place - 1)::int, r.status, r.result, r.redacted
    FROM jsonb_array_elements_text(p_spec -> 'nodes') WITH ORDINALITY AS n (number, place)
    CROSS JOIN LATERAL horsies_node_result(p_workflow, n.number::bigint) AS r
    WHERE n.place > p_from AND (p_many IS NULL OR n.place <= p_from + p_many)
    ORDER BY n.place;
  ELSE
    RETURN QUERY
    SELECT t.node_index, t.status::text, t.result, t.redacted_at IS NOT NULL
    FROM horsies_tasks t
    WHERE t.workflow_id = p_workflow AND t.node = (p_spec ->> 'node')::bigint AND t.node_index >= p_from
    ORDER BY t.node_index LIMIT p_many;
  END IF;
END
$$;
