-- Returns whether the value of a node matches a JSON path, NULL if the node has not finished. A value that does not fit the path, or no
-- value, does not match.
-- Locks: none. Index: primary keys.
CREATE FUNCTION horsies_condition(p_workflow uuid, p_number bigint, p_path text) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN r.status NOT IN ('ADDED', 'PENDING', 'READY', 'WAITING', 'ENQUEUED') THEN coalesce(
    r.status = 'COMPLETED' AND NOT r.redacted AND jsonb_path_match(r.result -> 'ok', p_path::jsonpath, silent => true), false) END
  FROM horsies_node_result(p_workflow, p_number) AS r
$$;
