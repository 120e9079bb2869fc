-- Sends some of the tasks of an undo node, from its cursor on: one for each task of the undone node that has begun, with its arguments that
-- the undo takes, and "result": its value, null if it did not complete. Where these were redacted or are too large, the task of the undo
-- is inserted as FAILED. An element that has an undo task already is passed over: after a retry, a node is expanded again.
-- Moves its node READY -> ENQUEUED, COMPLETED, FAILED; tasks (none) -> PENDING, FAILED. moved: whether the node is final.
-- Locks: none but the new rows; the caller holds the lock of the run. Index: primary keys, horsies_tasks_node.
CREATE FUNCTION horsies_expand_undo(p_run horsies_workflows, p_number bigint, p_many int, p_max_bytes int, p_now timestamptz,
                                    OUT many int, OUT moved boolean) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_node horsies_workflow_nodes;
  v_undone horsies_workflow_nodes;
  v_takes text[];
  v_until int;
  v_bad int;
  v_task uuid;
BEGIN
  SELECT n.* INTO v_node FROM horsies_workflow_nodes n WHERE n.workflow_id = p_run.id AND n.number = p_number;
  SELECT n.* INTO v_undone FROM horsies_workflow_nodes n WHERE n.workflow_id = p_run.id AND n.number = v_node.undoes;
  v_takes := ARRAY(SELECT jsonb_array_elements_text(v_undone.undo -> 'parameters'));
  v_until := least(v_node.expanded + greatest(p_many, 200), v_node.total);
  WITH element AS MATERIALIZED (
    SELECT b.place, k.kwargs,
           CASE WHEN v_takes <> '{}' AND b.redacted THEN 'RESULT_REDACTED'
                WHEN octet_length(k.kwargs::text) > p_max_bytes THEN 'PAYLOAD_TOO_LARGE' END AS refused
    FROM horsies_begun(p_run.id, v_undone.number, v_undone.undo -> 'begun', v_node.expanded, v_until) AS b
    CROSS JOIN LATERAL (
      SELECT coalesce(jsonb_object_agg(g.key, g.value), '{}') AS given FROM jsonb_each(b.kwargs) AS g
      WHERE g.key = ANY (v_takes) AND g.key <> 'result') AS g
    CROSS JOIN LATERAL (
      SELECT g.given || CASE WHEN 'result' = ANY (v_takes) THEN jsonb_build_object('result', b.value) ELSE '{}' END AS kwargs) AS k
    WHERE NOT EXISTS (SELECT FROM horsies_tasks x WHERE x.workflow_id = p_run.id AND x.node = p_number AND x.node_index = b.place)
    ORDER BY b.place LIMIT p_many
  ), sent AS (
    INSERT INTO horsies_tasks (id, task_name, queue_name, lane, priority, kwargs, sent_at, enqueued_at, partition_key, partition_version,
                               max_retries, options, codec, workflow_id, node, node_index, status, finished_at, advanced_at, error_code, result)
    SELECT horsies_uuid7(e.place), v_node.task_name, v_node.queue_name, v_node.lane, v_node.priority,
           horsies_stored_arguments(a.kwargs, v_node.codec), v_now, coalesce(p_now, now()),
           CASE WHEN q.partition_by_args IS NOT NULL OR q.partition_by_task
                THEN horsies_partition_key(q.partition_by_args, q.partition_by_task, a.kwargs::json, v_node.task_name, NULL) END,
           q.partition_version, v_node.max_retries, v_node.options, v_node.codec, p_run.id, p_number, e.place,
           CASE WHEN e.refused IS NULL THEN 'PENDING' ELSE 'FAILED' END, CASE WHEN e.refused IS NOT NULL THEN v_now END,
           CASE WHEN e.refused IS NOT NULL THEN v_now END, e.refused,
           CASE e.refused WHEN 'RESULT_REDACTED' THEN horsies_error_result(e.refused, 'the arguments and the value to undo were redacted')
                          WHEN 'PAYLOAD_TOO_LARGE' THEN horsies_error_result(e.refused, format(
                            'the arguments take %s bytes of JSON; HORSIES[''MAX_PAYLOAD_BYTES''] allows %s', octet_length(e.kwargs::text), p_max_bytes)) END
    FROM element e
    CROSS JOIN LATERAL (SELECT CASE WHEN e.refused IS NULL THEN e.kwargs ELSE '{}' END AS kwargs) AS a
    LEFT JOIN horsies_queues q ON q.name = v_node.queue_name
    RETURNING id, status, node_index
  )
  SELECT count(*) FILTER (WHERE s.status = 'PENDING'), count(*) FILTER (WHERE s.status = 'FAILED'), (array_agg(s.id))[1],
         CASE WHEN count(*) = p_many THEN max(s.node_index) + 1 ELSE v_until END
  INTO many, v_bad, v_task, v_until FROM sent s;
  UPDATE horsies_workflow_nodes n
  SET expanded = v_until, in_flight = n.in_flight + many, items_bad = n.items_bad + v_bad,
      task_id = CASE WHEN v_undone.kind = 'task' THEN coalesce(v_task, n.task_id) END
  WHERE n.workflow_id = p_run.id AND n.number = p_number;
  moved := horsies_close_maps(p_run.id, ARRAY[p_number], v_now) <> '{}';
END
$$;
