-- Sends some of the tasks of a map, from its cursor on. Raises HW001 if there is no list to map over, or if an element was redacted.
-- An element that has a task already is passed over: after a retry or a pause, a map is expanded again. A delay counts from the first
-- element that was sent, for all.
-- Moves its node READY -> ENQUEUED once every element has its task, READY -> COMPLETED if it has no elements. moved: whether it is final.
-- Locks: none but the new rows; the caller holds the lock of the run. Index: primary keys, horsies_tasks_node.
CREATE FUNCTION horsies_expand_map(p_run horsies_workflows, p_number bigint, p_many int, p_max_bytes int, p_now timestamptz,
                                   OUT many int, OUT moved boolean) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_node horsies_workflow_nodes;
  v_source jsonb;
  v_list jsonb;  -- NULL: the elements are the values of nodes, those of a map one by one
  v_parts record;
  v_kwargs jsonb;
  v_from int;
  v_until int;
  v_redacted boolean;
BEGIN
  moved := false;
  SELECT n.* INTO v_node FROM horsies_workflow_nodes n WHERE n.workflow_id = p_run.id AND n.number = p_number;
  v_source := v_node.inputs -> v_node.over;
  IF v_source IS NULL THEN
    v_list := v_node.value || '[]';  -- decompressed once, not for every element
  ELSIF NOT v_source ? 'nodes' AND NOT EXISTS (
    SELECT FROM horsies_workflow_nodes u WHERE u.workflow_id = p_run.id AND u.number = (v_source ->> 'node')::bigint AND u.kind = 'map') THEN
    v_list := horsies_argument(p_run.id, p_number, v_node.over, v_source || '{"as": "value"}', p_max_bytes);
    IF jsonb_typeof(v_list) IS DISTINCT FROM 'array' THEN
      RAISE EXCEPTION USING ERRCODE = 'HW001', DETAIL = 'MAP_WITHOUT_LIST', MESSAGE = format(
        'the value to map %s over is %s, not a list', v_node.over, coalesce(jsonb_typeof(v_list), 'missing'));
    END IF;
  END IF;
  SELECT array_agg(u.number) AS numbers, array_agg(u.first) AS firsts, array_agg(u.width) AS widths, sum(u.width)::int AS total INTO v_parts
  FROM (SELECT n.number, n.width, (sum(n.width) OVER (ORDER BY n.place) - n.width)::int AS first
        FROM (SELECT u.number, s.place, CASE u.kind WHEN 'map' THEN coalesce(u.total, 0) ELSE 1 END AS width
              FROM jsonb_array_elements_text(coalesce(v_source -> 'nodes', jsonb_build_array(v_source -> 'node')))
                WITH ORDINALITY AS s (number, place)
              JOIN horsies_workflow_nodes u ON u.workflow_id = p_run.id AND u.number = s.number::bigint
              WHERE v_list IS NULL) AS n) AS u;
  v_node.total := coalesce(v_node.total, jsonb_array_length(v_list), v_parts.total);
  v_node.due_at := coalesce(v_node.due_at, coalesce(p_now, now()) + v_node.delay);
  v_kwargs := horsies_node_kwargs(v_node, p_max_bytes);
  v_from := v_node.expanded;
  v_until := least(v_from + p_many, v_node.total);
  WITH element AS MATERIALIZED (
    SELECT i.place, v_list -> i.place AS value, false AS redacted
    FROM generate_series(v_from, v_until - 1) AS i (place) WHERE v_list IS NOT NULL
    UNION ALL
    SELECT (p.first + r.place)::int, r.result -> 'ok', r.redacted
    FROM unnest(v_parts.numbers, v_parts.firsts, v_parts.widths) AS p (number, first, width)
    CROSS JOIN LATERAL horsies_results(
      p_run.id, jsonb_build_object('node', p.number), v_from - p.first, v_until - greatest(v_from, p.first)) AS r
    WHERE p.first < v_until AND p.first + p.width > v_from AND p.first + r.place < v_until
      AND r.status = 'COMPLETED'  -- an element that was skipped has no value, and is passed over
  ), sent AS (
    INSERT INTO horsies_tasks (id, task_name, queue_name, lane, priority, kwargs, sent_at, enqueued_at, good_until,
                               partition_key, partition_version, max_retries, options, codec, workflow_id, node, node_index)
    SELECT horsies_uuid7(e.place), v_node.task_name, v_node.queue_name, v_node.lane, v_node.priority,
           horsies_stored_arguments(k.kwargs, v_node.codec),
           v_now, greatest(coalesce(p_now, now()), v_node.due_at), least(v_node.good_until, p_run.good_until),
           CASE WHEN q.partition_by_args IS NOT NULL OR q.partition_by_task
                THEN horsies_partition_key(q.partition_by_args, q.partition_by_task, k.kwargs::json, v_node.task_name, NULL) END,
           q.partition_version, v_node.max_retries, v_node.options, v_node.codec, p_run.id, p_number, e.place
    FROM element e
    CROSS JOIN LATERAL (SELECT v_kwargs || jsonb_build_object(v_node.over, e.value) AS kwargs) AS k
    LEFT JOIN horsies_queues q ON q.name = v_node.queue_name
    ON CONFLICT (workflow_id, node, node_index) WHERE workflow_id IS NOT NULL DO NOTHING
    RETURNING id
  )
  SELECT (SELECT count(*) FROM sent), (SELECT bool_or(e.redacted) FROM element e) INTO many, v_redacted;
  IF v_redacted THEN
    RAISE EXCEPTION USING ERRCODE = 'HW001', DETAIL = 'RESULT_REDACTED', MESSAGE = format('a result for %s was redacted', v_node.over);
  END IF;
  UPDATE horsies_workflow_nodes n
  SET total = v_node.total, due_at = v_node.due_at, expanded = v_until, in_flight = n.in_flight + many
  WHERE n.workflow_id = p_run.id AND n.number = p_number;
  moved := horsies_close_maps(p_run.id, ARRAY[p_number], v_now) <> '{}';
END
$$;
