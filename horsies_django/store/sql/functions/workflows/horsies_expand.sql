-- Sends some of the tasks of a map, or of an undo node, from its cursor on.
-- An element that has a task already is passed over: after a retry or a pause, a node is expanded
-- again. A delay counts from the first element that was sent, for all.
-- A map has a task for each element of its list. Raises HW001 if there is no list, or if an element
-- was redacted.
-- An undo node has a task for each task of the undone node that has begun. Its arguments are those
-- of the undone task that the undo takes, and "result": the value of that task, null if it did not
-- complete. If these were redacted or are too large, the task of the undo fails at once, by a
-- statement of its own: a role that only sends needs no right to insert a task that has failed.
--
-- Args: p_many is the largest number of tasks to send.
-- Returns: many is the number of tasks that were sent; moved is true if the node is final.
-- Moves: the node READY -> ENQUEUED once every element has its task, else as horsies_close_maps if
-- none is left; tasks (none) -> PENDING, PENDING -> FAILED.
-- Locks: none but the new rows; the caller holds the lock of the run.
-- Index: primary keys, horsies_tasks_node.
CREATE OR REPLACE FUNCTION horsies_expand(
  p_run horsies_workflows, p_node horsies_workflow_nodes, p_many int, p_max_bytes int,
  p_now timestamptz,
  OUT many int, OUT moved boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_start timestamptz := coalesce(p_now, now());
  v_source jsonb := p_node.inputs -> p_node.over;
  v_list jsonb;  -- NULL: the elements are the values of nodes, those of a map one by one
  v_parts record;
  v_undone horsies_workflow_nodes;
  v_takes text[];
  v_kwargs jsonb;
  v_total int;
  v_due timestamptz;
  v_until int;
  v_errors jsonb;  -- of elements that cannot be sent, by their place
  v_refused uuid[];
  v_task uuid;
BEGIN
  IF p_node.kind = 'undo' THEN
    SELECT n.*
    INTO v_undone
    FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_run.id AND n.number = p_node.undoes;

    v_takes := ARRAY(SELECT jsonb_array_elements_text(v_undone.undo -> 'parameters'));
  ELSIF v_source IS NULL THEN
    v_list := p_node.value || '[]';  -- decompressed once, not for every element
  ELSIF NOT v_source ? 'nodes' AND NOT EXISTS (
    SELECT FROM horsies_workflow_nodes u
    WHERE u.workflow_id = p_run.id
      AND u.number = (v_source ->> 'node')::bigint
      AND u.kind = 'map'
  ) THEN
    v_list := horsies_argument(
      p_run.id, p_node.number, p_node.over, v_source || '{"as": "value"}', p_max_bytes);
    IF jsonb_typeof(v_list) IS DISTINCT FROM 'array' THEN
      RAISE EXCEPTION USING
        ERRCODE = 'HW001', DETAIL = 'MAP_WITHOUT_LIST',
        MESSAGE = format(
          'the value to map %s over is %s, not a list',
          p_node.over, coalesce(jsonb_typeof(v_list), 'missing'));
    END IF;
  END IF;

  SELECT
    array_agg(part.number) AS numbers,
    array_agg(part.first) AS firsts,
    array_agg(part.width) AS widths,
    sum(part.width)::int AS total
  INTO v_parts
  FROM (
    SELECT
      sized_node.number, sized_node.width,
      (sum(sized_node.width) OVER (ORDER BY sized_node.place) - sized_node.width)::int AS first
    FROM (
      SELECT
        upstream_node.number, listed.place,
        CASE upstream_node.kind WHEN 'map' THEN coalesce(upstream_node.total, 0) ELSE 1 END AS width
      FROM jsonb_array_elements_text(
        coalesce(v_source -> 'nodes', jsonb_build_array(v_source -> 'node'))
      ) WITH ORDINALITY AS listed (number, place)
      CROSS JOIN LATERAL (
        SELECT node.*
        FROM horsies_workflow_nodes node
        WHERE node.workflow_id = p_run.id AND node.number = listed.number::bigint
        OFFSET 0
      ) AS upstream_node
      WHERE v_list IS NULL AND v_source IS NOT NULL
    ) AS sized_node
  ) AS part;

  v_total := coalesce(p_node.total, jsonb_array_length(v_list), v_parts.total);
  v_due := coalesce(p_node.due_at, v_start + p_node.delay);
  v_kwargs := horsies_node_kwargs(p_node, p_max_bytes);
  v_until := least(
    p_node.expanded
      + CASE p_node.kind
          WHEN 'undo' THEN greatest(p_many, 200)  -- few may have begun
          ELSE p_many
        END,
    v_total);

  WITH element AS MATERIALIZED (
    SELECT
      item.place,
      v_kwargs || jsonb_build_object(p_node.over, v_list -> item.place) AS kwargs,
      NULL AS refused
    FROM generate_series(p_node.expanded, v_until - 1) AS item (place)
    WHERE v_list IS NOT NULL
    UNION ALL
    SELECT
      (part.first + upstream_result.place)::int,
      v_kwargs || jsonb_build_object(p_node.over, upstream_result.result -> 'ok'),
      CASE WHEN upstream_result.redacted THEN 'RESULT_REDACTED' END
    FROM unnest(v_parts.numbers, v_parts.firsts, v_parts.widths) AS part (number, first, width)
    CROSS JOIN LATERAL horsies_results(
      p_run.id, jsonb_build_object('node', part.number),
      p_node.expanded - part.first, v_until - greatest(p_node.expanded, part.first)
    ) AS upstream_result
    WHERE part.first < v_until
      AND part.first + part.width > p_node.expanded
      AND part.first + upstream_result.place < v_until
      -- an element that was skipped has no value, and is passed over
      AND upstream_result.status = 'COMPLETED'
    UNION ALL
    (
      SELECT
        begun_task.place,
        taken.kwargs,
        CASE
          WHEN v_takes <> '{}' AND begun_task.redacted THEN 'RESULT_REDACTED'
          WHEN octet_length(taken.kwargs::text) > p_max_bytes THEN 'PAYLOAD_TOO_LARGE'
        END
      FROM horsies_begun(
        p_run.id, v_undone.number, v_undone.undo -> 'begun', p_node.expanded, v_until
      ) AS begun_task
      CROSS JOIN LATERAL (
        SELECT
          coalesce(
            jsonb_object_agg(argument.key, argument.value)
              FILTER (WHERE argument.key = ANY (v_takes) AND argument.key <> 'result'),
            '{}')
          || CASE
               WHEN 'result' = ANY (v_takes) THEN jsonb_build_object('result', begun_task.value)
               ELSE '{}'
             END AS kwargs
        FROM jsonb_each(begun_task.kwargs) AS argument
      ) AS taken
      WHERE p_node.kind = 'undo'
        AND NOT EXISTS (
          SELECT FROM horsies_tasks existing
          WHERE existing.workflow_id = p_run.id
            AND existing.node = p_node.number
            AND existing.node_index = begun_task.place
        )
      ORDER BY begun_task.place
      LIMIT p_many
    )
  ), sent AS (
    INSERT INTO horsies_tasks (
      id, task_name, queue_name, lane, priority,
      kwargs,
      sent_at, enqueued_at, good_until,
      partition_key, partition_version,
      max_retries, options, codec, workflow_id, node, node_index
    )
    SELECT
      horsies_uuid7(entry.place), p_node.task_name, p_node.queue_name, p_node.lane, p_node.priority,
      horsies_stored_arguments(accepted.kwargs, p_node.codec),
      v_now, greatest(v_start, v_due),
      CASE p_node.kind WHEN 'map' THEN least(p_node.good_until, p_run.good_until) END,
      CASE
        WHEN queue.partition_by_args IS NOT NULL OR queue.partition_by_task
        THEN horsies_partition_key(
          queue.partition_by_args, queue.partition_by_task, accepted.kwargs::json,
          p_node.task_name, NULL)
      END,
      queue.partition_version,
      p_node.max_retries, p_node.options, p_node.codec, p_run.id, p_node.number, entry.place
    FROM element entry
    CROSS JOIN LATERAL (
      SELECT CASE WHEN entry.refused IS NULL THEN entry.kwargs ELSE '{}' END AS kwargs
    ) AS accepted
    LEFT JOIN horsies_queues queue ON queue.name = p_node.queue_name
    ON CONFLICT (workflow_id, node, node_index) WHERE workflow_id IS NOT NULL DO NOTHING
    RETURNING id, node_index
  )
  SELECT
    count(sent_task.id),
    array_agg(sent_task.id) FILTER (WHERE sent_task.node_index = ANY (rejected.places)),
    (array_agg(sent_task.id))[1],
    CASE
      WHEN p_node.kind = 'undo' AND count(sent_task.id) = p_many THEN max(sent_task.node_index) + 1
      ELSE v_until
    END,
    (
      SELECT
        jsonb_object_agg(
          entry.place,
          horsies_error_result(
            entry.refused,
            CASE entry.refused
              WHEN 'RESULT_REDACTED' THEN 'the arguments and the value to undo were redacted'
              ELSE format(
                'the arguments take %s bytes of JSON; HORSIES[''MAX_PAYLOAD_BYTES''] allows %s',
                octet_length(entry.kwargs::text), p_max_bytes)
            END))
      FROM element entry
      WHERE entry.refused IS NOT NULL
    )
  INTO many, v_refused, v_task, v_until, v_errors
  FROM (
    SELECT array_agg(entry.place) AS places
    FROM element entry
    WHERE entry.refused IS NOT NULL
  ) AS rejected
  LEFT JOIN sent sent_task ON true;

  IF v_refused IS NOT NULL THEN
    IF p_node.kind = 'map' THEN
      RAISE EXCEPTION USING
        ERRCODE = 'HW001', DETAIL = 'RESULT_REDACTED',
        MESSAGE = format('a result for %s was redacted', p_node.over);
    END IF;

    UPDATE horsies_tasks t
    SET
      status = 'FAILED', finished_at = v_now, advanced_at = v_now,
      error_code = v_errors -> t.node_index::text #>> '{err,error_code}',
      result = v_errors -> t.node_index::text
    WHERE t.id = ANY (v_refused) AND t.status = 'PENDING';

    many := many - cardinality(v_refused);
  END IF;

  UPDATE horsies_workflow_nodes n
  SET
    total = v_total,
    due_at = v_due,
    expanded = v_until,
    in_flight = n.in_flight + many,
    items_bad = n.items_bad + coalesce(cardinality(v_refused), 0),
    task_id = CASE WHEN v_undone.kind = 'task' THEN coalesce(v_task, n.task_id) END
  WHERE n.workflow_id = p_run.id AND n.number = p_node.number;

  moved := horsies_close_maps(p_run.id, ARRAY[p_node.number], v_now) <> '{}';
END
$$;
