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
    UPDATE horsies_workflow_nodes n
    SET status = 'ADDED'
    FROM unnest(p_moved) AS f (number)
    CROSS JOIN LATERAL horsies_downstream(p_run.id, f.number) AS d
    CROSS JOIN LATERAL horsies_address(p_run.id, d.number) AS a
    WHERE n.ctid = a.address AND n.status = 'PENDING';

    v_reached := v_reached || ARRAY(
      SELECT f.number
      FROM unnest(p_moved) AS f (number)
      CROSS JOIN LATERAL (
        SELECT n.status
        FROM horsies_workflow_nodes n
        WHERE n.workflow_id = p_run.id AND n.number = f.number
        OFFSET 0
      ) AS n
      WHERE n.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
    );
  END IF;

  WITH RECURSIVE again (number) AS (
    SELECT unnest(v_reached)
    UNION
    SELECT d.number
    FROM again a
    CROSS JOIN LATERAL horsies_downstream(p_run.id, a.number) AS d
    WHERE d.status = 'SKIPPED' AND d.error_code IS DISTINCT FROM 'SKIPPED_BY_HAND'
  )
  SELECT coalesce(array_agg(l.number), '{}')
  INTO v_again
  FROM (
    SELECT a.number
    FROM again a
    -- The LIMIT ends the search; its size has room for some new ones each time.
    LIMIT greatest(p_many, cardinality(v_reached) + p_many / 2)
  ) AS l;

  WITH parts AS MATERIALIZED (
    SELECT
      n.ctid,
      n.number,
      n.kind,
      n.undo IS NOT NULL AS undone,
      u.until,
      greatest(
        u.until - greatest(
          p_many - sum(u.until) OVER (ORDER BY n.number) + u.until,
          0),
        0)::int AS since
    FROM unnest(v_again) AS a (number)
    CROSS JOIN LATERAL (
      SELECT n.ctid, n.*
      FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_run.id AND n.number = a.number
      OFFSET 0
    ) AS n
    CROSS JOIN LATERAL (
      SELECT
        CASE
          WHEN n.status = 'ADDED' THEN n.expanded
          WHEN n.kind IN ('map', 'undo') THEN greatest(n.total, n.expanded)
          ELSE 1
        END AS until
    ) AS u
  ),
  had AS MATERIALIZED (
    SELECT
      p.ctid, p.number, p.since,
      t.id, t.node_index, t.order_stop, t.queue_name, t.partition_key,
      t.advanced_at IS NOT NULL AS counted,
      p.kind IN ('map', 'undo')
      AND (
        t.status = 'COMPLETED' OR t.error_code IS NOT DISTINCT FROM 'TASK_SKIPPED'
      ) AS kept,
      p.undone
      AND t.status <> 'COMPLETED'
      AND horsies_has_begun(t.id, t.status, t.error_code) AS begun
    FROM parts p
    LEFT JOIN LATERAL (  -- not a join, which may read all tasks of the run for each node
      SELECT x.*
      FROM horsies_tasks x
      WHERE x.workflow_id = p_run.id
        AND x.node = p.number
        AND x.node_index >= p.since
        AND x.node_index < p.until
      OFFSET 0
    ) AS t ON true
  ),
  replaced AS (
    UPDATE horsies_tasks t
    SET node = NULL, order_stop = NULL
    WHERE t.id = ANY (ARRAY(SELECT h.id FROM had h WHERE NOT h.kept))
  ),
  nodes AS MATERIALIZED (
    SELECT
      h.ctid,
      h.since,
      count(*) FILTER (WHERE h.kept AND h.counted)::int AS ok,
      jsonb_object_agg(h.node_index, h.id) FILTER (WHERE h.begun) AS begun,
      h.since = 0
      AND NOT EXISTS (
        SELECT FROM horsies_downstream(p_run.id, h.number) AS d
        WHERE d.status = 'SKIPPED'
          AND d.error_code IS DISTINCT FROM 'SKIPPED_BY_HAND'
          AND d.number NOT IN (SELECT unnest(v_again))
      ) AS joins
    FROM had h
    GROUP BY h.ctid, h.number, h.since
  ),
  joined AS (
    UPDATE horsies_workflow_nodes n
    SET status = 'ADDED',
        finished_at = CASE WHEN NOT h.joins THEN n.finished_at END,
        error_code = NULL,
        error = NULL,
        good_until = NULL,
        due_at = CASE WHEN n.delay IS NULL THEN n.due_at END,
        task_id = CASE WHEN n.kind = 'workflow' THEN n.task_id END,
        items_ok = CASE n.status WHEN 'ADDED' THEN n.items_ok ELSE 0 END + h.ok,
        items_bad = 0,
        in_flight = 0,
        expanded = h.since,
        -- For an undo, see horsies_close_maps.
        total = CASE n.kind WHEN 'undo' THEN greatest(n.total, n.expanded) ELSE n.total END,
        undo = CASE
          WHEN h.begun IS NULL THEN n.undo
          ELSE jsonb_set(n.undo, '{begun}', coalesce(n.undo -> 'begun', '{}') || h.begun)
        END
    FROM nodes h
    WHERE n.ctid = h.ctid
    RETURNING n.number, h.joins
  )
  SELECT
    coalesce(array_agg(j.number) FILTER (WHERE j.joins), '{}'),
    (SELECT array_agg(h.queue_name::text) FROM had h WHERE h.order_stop IS NOT NULL),
    (SELECT array_agg(h.partition_key) FROM had h WHERE h.order_stop IS NOT NULL)
  INTO v_joined, v_queues, v_keys
  FROM joined j;

  PERFORM horsies_unpark_next(v_queues, v_keys, horsies_channel());

  UPDATE horsies_workflow_nodes n  -- the nodes keep their status
  SET open = c.open, ok = c.ok, bad = c.bad
  FROM (
    SELECT DISTINCT d.number
    FROM unnest(v_joined || p_moved) AS j (number)
    CROSS JOIN LATERAL horsies_downstream(p_run.id, j.number) AS d
    WHERE d.status <> 'ADDED'
  ) AS o
  CROSS JOIN LATERAL (
    SELECT
      count(*) FILTER (WHERE u.finished_at IS NULL)::int AS open,
      count(*) FILTER (WHERE u.counts AND u.status = 'COMPLETED')::int AS ok,
      count(*) FILTER (
        WHERE u.counts AND u.finished_at IS NOT NULL AND u.status <> 'COMPLETED'
      )::int AS bad
    FROM horsies_upstream(p_run.id, o.number) AS u
  ) AS c
  CROSS JOIN LATERAL horsies_address(p_run.id, o.number) AS a
  WHERE n.ctid = a.address;

  IF retrying = c_all AND NOT EXISTS (
    SELECT FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_run.id AND n.status = 'ADDED' AND n.finished_at IS NOT NULL
  ) THEN
    -- First the nodes that get new runs: their upstream nodes that run again are ADDED, and a node
    -- whose child run goes on is ADDED no more.
    WITH nested AS MATERIALIZED (
      SELECT
        n.ctid,
        c.finished_at IS NULL
        OR EXISTS (
          SELECT FROM horsies_upstream(p_run.id, n.number) AS u WHERE u.status = 'ADDED'
        ) AS anew
      FROM horsies_workflow_nodes n
      LEFT JOIN LATERAL (
        SELECT c.finished_at FROM horsies_workflows c WHERE c.id = n.task_id OFFSET 0
      ) AS c ON true
      WHERE n.workflow_id = p_run.id
        AND n.status = 'ADDED'
        AND n.kind = 'workflow'
        AND n.task_id IS NOT NULL
      ORDER BY anew DESC
      LIMIT p_many
    ),
    moved AS (
      UPDATE horsies_workflow_nodes n
      SET status = CASE WHEN e.anew THEN 'ADDED' ELSE 'ENQUEUED' END,
          task_id = CASE WHEN NOT e.anew THEN n.task_id END
      FROM nested e
      WHERE n.ctid = e.ctid
      RETURNING n.task_id
    )
    SELECT array_agg(m.task_id) FILTER (WHERE m.task_id IS NOT NULL), count(*)
    INTO v_children, v_many
    FROM moved m;

    PERFORM horsies_begin_retry(v_children, p_now);
    begun := v_children IS NOT NULL;
    retrying := CASE WHEN v_many = p_many THEN c_all END;
  END IF;

  UPDATE horsies_workflows w SET retrying = horsies_retry_part.retrying WHERE w.id = p_run.id;
END
$$;
