-- Returns whether the value of a node matches a JSON path.
-- A value that does not fit the path, or no value, does not match. "silent" does not suppress every
-- error, for example not those of datetime() with time zones: a value with such an error does not
-- match either.
--
-- Returns: NULL if the node has not finished.
CREATE OR REPLACE FUNCTION horsies_condition(p_workflow uuid, p_number bigint, p_path text)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_found record;
BEGIN
  v_found := horsies_node_result(p_workflow, p_number);
  IF v_found.status IN ('ADDED', 'PENDING', 'READY', 'WAITING', 'ENQUEUED') THEN
    RETURN NULL;
  ELSIF v_found.status <> 'COMPLETED' OR v_found.redacted THEN
    RETURN false;
  END IF;

  BEGIN
    RETURN coalesce(
      jsonb_path_match(v_found.result -> 'ok', p_path::jsonpath, silent => true), false);
  EXCEPTION WHEN OTHERS THEN  -- not a cancel of the statement
    RETURN false;
  END;
END
$$;
