-- Returns the status of a node, and its result in the format of core/codec/envelopes.py. The result
-- of a map is not here: its tasks have it.
-- Returns: redacted is whether the result of the task was erased.
CREATE OR REPLACE FUNCTION horsies_node_result(
  p_workflow uuid, p_number bigint,
  OUT status text, OUT kind text, OUT result jsonb, OUT redacted boolean
) LANGUAGE sql STABLE AS $$
  SELECT
    n.status,
    n.kind,
    CASE
      WHEN n.value IS NOT NULL AND n.kind <> 'map' THEN jsonb_build_object('ok', n.value)
      WHEN t.finished_at IS NOT NULL THEN t.result::jsonb
      WHEN n.status = 'SKIPPED'
        THEN horsies_error_result('UPSTREAM_SKIPPED', 'node ' || n.name || ' was skipped')
      WHEN n.status = 'COMPLETED' THEN '{"ok": null}'
      WHEN n.finished_at IS NULL
        THEN horsies_error_result('RESULT_NOT_READY', 'node ' || n.name || ' has not finished')
      ELSE horsies_error_result(
        coalesce(n.error_code, n.status),
        coalesce(n.error, 'node ' || n.name || ' is ' || n.status))
    END,
    coalesce(t.redacted_at IS NOT NULL, false)
  FROM horsies_workflow_nodes n
  LEFT JOIN LATERAL (
    SELECT t.finished_at, t.result, t.redacted_at
    FROM horsies_tasks t
    WHERE t.id = n.task_id
    OFFSET 0
  ) AS t ON n.kind = 'task'
  WHERE n.workflow_id = p_workflow AND n.number = p_number
$$;
