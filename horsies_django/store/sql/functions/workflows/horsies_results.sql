-- Returns the results of upstream nodes in order, for a list of nodes or for a map. A map gives the
-- results of its tasks, also in a list.
-- Args: p_from is the first place, and p_many the maximum of results; NULL for all.
-- Returns: place is the index of the node in the list, above 32 bits for the index of a map's task,
-- so that a call that reads on from a place needs no sizes of the maps before it.
-- Index: primary keys, horsies_tasks_node.
CREATE OR REPLACE FUNCTION horsies_results(
  p_workflow uuid, p_spec jsonb, p_from bigint, p_many int
) RETURNS TABLE (place bigint, status text, result jsonb, redacted boolean)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_left int := p_many;
  v_node record;
  v_found record;
  v_many int;
BEGIN
  FOR v_node IN
    SELECT n.number::bigint, (n.place - 1) << 32 AS place
    FROM jsonb_array_elements_text(
      coalesce(p_spec -> 'nodes', jsonb_build_array(p_spec -> 'node'))
    ) WITH ORDINALITY AS n (number, place)
    WHERE n.place > p_from >> 32
    ORDER BY n.place
  LOOP
    v_found := horsies_node_result(p_workflow, v_node.number);

    IF v_found.kind = 'map' THEN
      RETURN QUERY
      SELECT
        v_node.place + t.node_index,
        t.status::text,
        t.result::jsonb,
        t.redacted_at IS NOT NULL
      FROM horsies_tasks t
      WHERE t.workflow_id = p_workflow
        AND t.node = v_node.number
        AND t.node_index >= p_from - v_node.place
      ORDER BY t.node_index
      LIMIT v_left;
    ELSE
      RETURN QUERY
      SELECT v_node.place, v_found.status, v_found.result, v_found.redacted
      WHERE v_node.place >= p_from;
    END IF;

    GET DIAGNOSTICS v_many = ROW_COUNT;
    v_left := v_left - v_many;
    EXIT WHEN v_left <= 0;
  END LOOP;
END
$$;
