-- Does part of a retry. Nodes that failed, and nodes that were skipped because of them, not by a
-- person, are to join the run anew; of a run that is undone, the undos that failed.
-- A node that was reached is ADDED, and keeps its finished_at until its tasks are replaced and all
-- nodes that were skipped because of it were reached. Tasks are taken from it from the last element
-- of a map on: expanded is how many are left. Maps and undos keep their completed elements. A node
-- that runs again has no good_until any more. Tasks that had begun are noted in undo, and none
-- stops its partition any more. When the node joins, the counters of nodes downstream that do not
-- run again are counted anew.
-- The child runs are retried last of all. A node that waits for others that run again gets a new
-- run instead, because its inputs may change.
-- Args: p_many is about the maximum of nodes, and of their tasks. p_moved has nodes that ended
-- meanwhile. Those that failed run again, too; horsies_propagate will decide about nodes that wait
-- for one of them, when it admits them.
-- Returns: retrying is the new value of the column of the run: the number of the node from which on
-- failed nodes are still to be looked for; NULL when all is done. begun is whether child runs are
-- retried.
-- Moves: nodes FAILED, CANCELLED, EXPIRED, SKIPPED, PENDING -> ADDED, then ADDED -> ENQUEUED; child
-- runs as horsies_begin_retry.
-- Locks: task rows, rows of child runs; the caller holds the lock of the run.
-- Index: primary keys, horsies_workflow_nodes_added, horsies_workflow_edges_up, horsies_tasks_node.
CREATE OR REPLACE FUNCTION horsies_retry_part(
  p_run horsies_workflows, p_moved bigint[], p_many int, p_now timestamptz,
  OUT retrying bigint, OUT begun boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  c_all CONSTANT bigint := 9223372036854775807;  -- retrying, once all failed nodes were found
  v_reached bigint[];
  v_failed bigint[];
  v_again bigint[];
  v_joined bigint[];
  v_queues text[];
  v_keys text[];
  v_many int;
  v_children uuid[];
BEGIN
  retrying := p_run.retrying;
  begun := false;

  v_reached := ARRAY(
    SELECT n.number
    FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_run.id AND n.status = 'ADDED' AND n.finished_at IS NOT NULL
    LIMIT p_many
  );
  v_many := p_many - cardinality(v_reached);

  IF retrying < c_all AND v_many > 0 THEN
    v_failed := ARRAY(
      SELECT n.number
      FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_run.id
        AND n.number >= retrying
        AND n.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
        AND (n.kind = 'undo' OR p_run.status <> 'COMPENSATING')
      ORDER BY n.number
      LIMIT v_many
    );
    retrying := CASE WHEN cardinality(v_failed) < v_many THEN c_all ELSE v_failed[v_many] + 1 END;
    v_reached := v_reached || v_failed;
  END IF;

  IF p_moved <> '{}' THEN
    UPDATE horsies_workflow_nodes node
    SET status = 'ADDED'
    FROM unnest(p_moved) AS moved_node (number)
    CROSS JOIN LATERAL horsies_downstream(p_run.id, moved_node.number) AS downstream_node
    CROSS JOIN LATERAL horsies_address(p_run.id, downstream_node.number) AS node_row
    WHERE node.ctid = node_row.address AND node.status = 'PENDING';

    v_reached := v_reached || ARRAY(
      SELECT moved_node.number
      FROM unnest(p_moved) AS moved_node (number)
      CROSS JOIN LATERAL (
        SELECT node.status
        FROM horsies_workflow_nodes node
        WHERE node.workflow_id = p_run.id AND node.number = moved_node.number
        OFFSET 0
      ) AS node
      WHERE node.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
    );
  END IF;

  WITH RECURSIVE again (number) AS (
    SELECT unnest(v_reached)
    UNION
    SELECT downstream_node.number
    FROM again rerun_node
    CROSS JOIN LATERAL horsies_downstream(p_run.id, rerun_node.number) AS downstream_node
    WHERE downstream_node.status = 'SKIPPED'
      AND downstream_node.error_code IS DISTINCT FROM 'SKIPPED_BY_HAND'
  )
  SELECT coalesce(array_agg(listed_node.number), '{}')
  INTO v_again
  FROM (
    SELECT rerun_node.number
    FROM again rerun_node
    -- The LIMIT ends the search; its size has room for some new ones each time.
    LIMIT greatest(p_many, cardinality(v_reached) + p_many / 2)
  ) AS listed_node;

  WITH parts AS MATERIALIZED (
    SELECT
      reached_node.ctid,
      reached_node.number,
      reached_node.kind,
      reached_node.undo IS NOT NULL AS undone,
      extent.until,
      greatest(
        extent.until - greatest(
          p_many - sum(extent.until) OVER (ORDER BY reached_node.number) + extent.until,
          0),
        0)::int AS since
    FROM unnest(v_again) AS rerun_node (number)
    CROSS JOIN LATERAL (
      SELECT reached_node.ctid, reached_node.*
      FROM horsies_workflow_nodes reached_node
      WHERE reached_node.workflow_id = p_run.id AND reached_node.number = rerun_node.number
      OFFSET 0
    ) AS reached_node
    CROSS JOIN LATERAL (
      SELECT
        CASE
          WHEN reached_node.status = 'ADDED' THEN reached_node.expanded
          WHEN reached_node.kind IN ('map', 'undo')
            THEN greatest(reached_node.total, reached_node.expanded)
          ELSE 1
        END AS until
    ) AS extent
  ),
  had AS MATERIALIZED (
    SELECT
      part.ctid, part.number, part.since,
      task.id, task.node_index, task.order_stop, task.queue_name, task.partition_key,
      task.advanced_at IS NOT NULL AS counted,
      part.kind IN ('map', 'undo')
      AND (
        task.status = 'COMPLETED' OR task.error_code IS NOT DISTINCT FROM 'TASK_SKIPPED'
      ) AS kept,
      part.undone
      AND task.status <> 'COMPLETED'
      AND horsies_has_begun(task.id, task.status, task.error_code) AS begun
    FROM parts part
    LEFT JOIN LATERAL (  -- not a join, which may read all tasks of the run for each node
      SELECT found_task.*
      FROM horsies_tasks found_task
      WHERE found_task.workflow_id = p_run.id
        AND found_task.node = part.number
        AND found_task.node_index >= part.since
        AND found_task.node_index < part.until
      OFFSET 0
    ) AS task ON true
  ),
  replaced AS (
    UPDATE horsies_tasks task
    SET node = NULL, order_stop = NULL
    WHERE task.id = ANY (ARRAY(SELECT old_task.id FROM had old_task WHERE NOT old_task.kept))
  ),
  nodes AS MATERIALIZED (
    SELECT
      old_task.ctid,
      old_task.since,
      count(*) FILTER (WHERE old_task.kept AND old_task.counted)::int AS ok,
      jsonb_object_agg(old_task.node_index, old_task.id) FILTER (WHERE old_task.begun) AS begun,
      old_task.since = 0
      AND NOT EXISTS (
        SELECT FROM horsies_downstream(p_run.id, old_task.number) AS downstream_node
        WHERE downstream_node.status = 'SKIPPED'
          AND downstream_node.error_code IS DISTINCT FROM 'SKIPPED_BY_HAND'
          AND downstream_node.number NOT IN (SELECT unnest(v_again))
      ) AS joins
    FROM had old_task
    GROUP BY old_task.ctid, old_task.number, old_task.since
  ),
  joined AS (
    UPDATE horsies_workflow_nodes reached_node
    SET status = 'ADDED',
        finished_at = CASE WHEN NOT change.joins THEN reached_node.finished_at END,
        error_code = NULL,
        error = NULL,
        good_until = NULL,
        due_at = CASE WHEN reached_node.delay IS NULL THEN reached_node.due_at END,
        task_id = CASE WHEN reached_node.kind = 'workflow' THEN reached_node.task_id END,
        items_ok = CASE reached_node.status WHEN 'ADDED' THEN reached_node.items_ok ELSE 0 END
                   + change.ok,
        items_bad = 0,
        in_flight = 0,
        expanded = change.since,
        -- For an undo, see horsies_close_maps.
        total = CASE reached_node.kind
          WHEN 'undo' THEN greatest(reached_node.total, reached_node.expanded)
          ELSE reached_node.total
        END,
        undo = CASE
          WHEN change.begun IS NULL THEN reached_node.undo
          ELSE jsonb_set(
            reached_node.undo,
            '{begun}',
            coalesce(reached_node.undo -> 'begun', '{}') || change.begun)
        END
    FROM nodes change
    WHERE reached_node.ctid = change.ctid
    RETURNING reached_node.number, change.joins
  )
  SELECT
    coalesce(array_agg(joined_node.number) FILTER (WHERE joined_node.joins), '{}'),
    (
      SELECT array_agg(old_task.queue_name::text)
      FROM had old_task
      WHERE old_task.order_stop IS NOT NULL
    ),
    (
      SELECT array_agg(old_task.partition_key)
      FROM had old_task
      WHERE old_task.order_stop IS NOT NULL
    )
  INTO v_joined, v_queues, v_keys
  FROM joined joined_node;

  PERFORM horsies_unpark_next(v_queues, v_keys, horsies_channel());

  UPDATE horsies_workflow_nodes node  -- the nodes keep their status
  SET open = counters.open, ok = counters.ok, bad = counters.bad
  FROM (
    SELECT DISTINCT downstream_node.number
    FROM unnest(v_joined || p_moved) AS joined_node (number)
    CROSS JOIN LATERAL horsies_downstream(p_run.id, joined_node.number) AS downstream_node
    WHERE downstream_node.status <> 'ADDED'
  ) AS other_node
  CROSS JOIN LATERAL (
    SELECT
      count(*) FILTER (WHERE upstream_node.finished_at IS NULL)::int AS open,
      count(*) FILTER (
        WHERE upstream_node.counts AND upstream_node.status = 'COMPLETED'
      )::int AS ok,
      count(*) FILTER (
        WHERE upstream_node.counts
          AND upstream_node.finished_at IS NOT NULL
          AND upstream_node.status <> 'COMPLETED'
      )::int AS bad
    FROM horsies_upstream(p_run.id, other_node.number) AS upstream_node
  ) AS counters
  CROSS JOIN LATERAL horsies_address(p_run.id, other_node.number) AS node_row
  WHERE node.ctid = node_row.address;

  IF retrying = c_all AND NOT EXISTS (
    SELECT FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_run.id AND n.status = 'ADDED' AND n.finished_at IS NOT NULL
  ) THEN
    -- First the nodes that get new runs: their upstream nodes that run again are ADDED, and a node
    -- whose child run goes on is ADDED no more.
    WITH nested AS MATERIALIZED (
      SELECT
        node.ctid,
        child_run.finished_at IS NULL
        OR EXISTS (
          SELECT FROM horsies_upstream(p_run.id, node.number) AS upstream_node
          WHERE upstream_node.status = 'ADDED'
        ) AS anew
      FROM horsies_workflow_nodes node
      LEFT JOIN LATERAL (
        SELECT child_run.finished_at
        FROM horsies_workflows child_run
        WHERE child_run.id = node.task_id
        OFFSET 0
      ) AS child_run ON true
      WHERE node.workflow_id = p_run.id
        AND node.status = 'ADDED'
        AND node.kind = 'workflow'
        AND node.task_id IS NOT NULL
      ORDER BY anew DESC
      LIMIT p_many
    ),
    moved AS (
      UPDATE horsies_workflow_nodes node
      SET status = CASE WHEN nested_node.anew THEN 'ADDED' ELSE 'ENQUEUED' END,
          task_id = CASE WHEN NOT nested_node.anew THEN node.task_id END
      FROM nested nested_node
      WHERE node.ctid = nested_node.ctid
      RETURNING node.task_id
    )
    SELECT array_agg(moved_node.task_id) FILTER (WHERE moved_node.task_id IS NOT NULL), count(*)
    INTO v_children, v_many
    FROM moved moved_node;

    PERFORM horsies_begin_retry(v_children, p_now);
    begun := v_children IS NOT NULL;
    retrying := CASE WHEN v_many = p_many THEN c_all END;
  END IF;

  UPDATE horsies_workflows w SET retrying = horsies_retry_part.retrying WHERE w.id = p_run.id;
END
$$;
