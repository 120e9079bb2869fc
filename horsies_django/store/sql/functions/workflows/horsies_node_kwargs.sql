-- Returns the arguments of a node: those given when the workflow was built, and those from results.
-- Raises HW001 with an error code in DETAIL if they cannot be made, or are larger than p_max_bytes.
--
-- Index: those of horsies_argument.
CREATE OR REPLACE FUNCTION horsies_node_kwargs(p_node horsies_workflow_nodes, p_max_bytes int)
RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_kwargs jsonb := p_node.kwargs;
BEGIN
  IF p_node.inputs IS NULL THEN
    RETURN v_kwargs;
  END IF;

  SELECT
    v_kwargs || coalesce(jsonb_object_agg(i.key, a.value) FILTER (WHERE a.value IS NOT NULL), '{}')
  INTO v_kwargs
  FROM jsonb_each(p_node.inputs) AS i
  CROSS JOIN LATERAL (
    SELECT
      horsies_argument(p_node.workflow_id, p_node.number, i.key, i.value, p_max_bytes) AS value
    OFFSET 0  -- so that it is evaluated once
  ) AS a
  WHERE i.key IS DISTINCT FROM p_node.over;

  IF octet_length(v_kwargs::text) > p_max_bytes THEN
    RAISE EXCEPTION USING
      ERRCODE = 'HW001', DETAIL = 'PAYLOAD_TOO_LARGE',
      MESSAGE = format(
        'the arguments take %s bytes of JSON; HORSIES[''MAX_PAYLOAD_BYTES''] allows %s',
        octet_length(v_kwargs::text), p_max_bytes);
  END IF;

  RETURN v_kwargs;
END
$$;
