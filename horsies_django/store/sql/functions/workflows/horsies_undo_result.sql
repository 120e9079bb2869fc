-- Returns the result of a run whose undos have all ended, from the one with which it would have ended without them: the same with the number
-- of undone nodes, or COMPENSATION_FAILED with the nodes that were not undone.
-- Locks: none. Index: primary key.
CREATE OR REPLACE FUNCTION horsies_undo_result(p_workflow uuid, p_result jsonb) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN e.not_undone IS NULL THEN jsonb_set(p_result, '{err,data}', e.data) ELSE jsonb_set(
           horsies_error_result('COMPENSATION_FAILED', left(concat('not undone: ', e.names, '; ', p_result #>> '{err,message}'), 10000)),
           '{err,data}', e.data || jsonb_build_object('not_undone', e.not_undone, 'cause', p_result -> 'err')) END
  FROM (
    SELECT jsonb_strip_nulls(jsonb_build_object('node', p_result #> '{err,data,node}',
                                                'error_code', coalesce(p_result #> '{err,data,error_code}', p_result #> '{err,error_code}')))
           || jsonb_build_object('undone', count(*) FILTER (WHERE u.status = 'COMPLETED')) AS data,
           jsonb_agg(jsonb_build_object('node', n.name, 'error_code', coalesce(u.error_code, u.status)) ORDER BY u.finished_at, u.number)
             FILTER (WHERE u.status IN ('FAILED', 'CANCELLED', 'EXPIRED')) AS not_undone,
           string_agg(n.name, ', ' ORDER BY u.finished_at, u.number) FILTER (WHERE u.status IN ('FAILED', 'CANCELLED', 'EXPIRED')) AS names
    FROM horsies_workflow_nodes u CROSS JOIN LATERAL (
      SELECT n.name FROM horsies_workflow_nodes n WHERE n.workflow_id = u.workflow_id AND n.number = u.undoes OFFSET 0) AS n
    WHERE u.workflow_id = p_workflow AND u.kind = 'undo') AS e
$$;
