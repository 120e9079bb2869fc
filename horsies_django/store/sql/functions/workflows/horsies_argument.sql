-- Returns an argument that comes from the results of upstream nodes.
-- Raises HW001 with an error code in DETAIL if there is no such value, or if it is larger than
-- p_max_bytes.
--
-- Args: p_number is the node, NULL for the value of the run. For p_spec, see workflows/nodes.py.
-- Returns: the argument; NULL if it is to be left out.
-- Index: primary keys, horsies_tasks_node.
CREATE OR REPLACE FUNCTION horsies_argument(
  p_workflow uuid, p_number bigint, p_parameter text, p_spec jsonb, p_max_bytes int
) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_found record;
  v_size bigint;
  v_redacted boolean;
  v_value jsonb;
BEGIN
  IF p_spec ->> 'as' = 'results' THEN
    RETURN jsonb_build_object('workflow', p_workflow, 'node', p_number, 'parameter', p_parameter);
  END IF;

  IF p_spec ->> 'as' = 'list' THEN
    SELECT
      max(i.size),
      bool_or(i.redacted),
      coalesce(
        jsonb_agg(i.result -> 'ok' ORDER BY i.place)
          FILTER (WHERE i.status = 'COMPLETED' AND i.size <= p_max_bytes),
        '[]')
    INTO v_size, v_redacted, v_value
    FROM (  -- never more in memory than is allowed, as JSON
      SELECT
        r.*,
        sum(CASE WHEN r.status = 'COMPLETED' THEN octet_length((r.result -> 'ok')::text) + 2 END)
          OVER (ORDER BY r.place) AS size
      FROM horsies_results(p_workflow, p_spec, 0, NULL) AS r
    ) AS i;

    IF v_size > p_max_bytes THEN
      RAISE EXCEPTION USING
        ERRCODE = 'HW001', DETAIL = 'PAYLOAD_TOO_LARGE',
        MESSAGE = format(
    'the results for %s take more than the %s bytes that HORSIES[''MAX_PAYLOAD_BYTES''] allows: %s',
          p_parameter, p_max_bytes,
          CASE
            WHEN p_number IS NULL THEN 'handle.results() reads them one by one'
            ELSE 'annotate it Results[...]'
          END);
    END IF;

    IF v_redacted THEN
      RAISE EXCEPTION USING
        ERRCODE = 'HW001', DETAIL = 'RESULT_REDACTED',
        MESSAGE = format('a result for %s was redacted', p_parameter);
    END IF;

    RETURN v_value;
  END IF;

  v_found := horsies_node_result(p_workflow, (p_spec ->> 'node')::bigint);
  IF v_found.redacted THEN
    RAISE EXCEPTION USING
      ERRCODE = 'HW001', DETAIL = 'RESULT_REDACTED',
      MESSAGE = format('the result for %s was redacted', p_parameter);
  ELSIF p_spec ->> 'as' = 'result' THEN
    RETURN v_found.result;
  ELSIF v_found.status = 'COMPLETED' THEN
    RETURN v_found.result -> 'ok';
  END IF;

  RETURN NULL;  -- the parameter has a default
END
$$;
