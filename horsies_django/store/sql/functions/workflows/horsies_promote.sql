-- Begins ready waits, p_limit at most, also if max_in_flight leaves no room; waits for signals take
-- the signals that were sent early. Then sends the tasks of ready nodes, p_limit at most, in the
-- order of the nodes. A node that cannot be sent fails alone.
-- Returns: many is the number of tasks sent, with begun runs of nodes and successors. moved has the
-- nodes that are final now. more is whether there are other ready nodes. continued is whether the
-- run has ended, as horsies_continue_run describes.
-- Moves: nodes READY -> ENQUEUED, WAITING, COMPLETED, FAILED; runs of nodes (none) -> RUNNING.
-- Locks: as horsies_give_signal; the caller holds the lock of the run.
-- Index: horsies_workflow_nodes_open, horsies_workflow_nodes_waits, primary keys.
CREATE OR REPLACE FUNCTION horsies_promote(
  p_run horsies_workflows, p_limit int, p_max_bytes int, p_channel text, p_now timestamptz,
  OUT many int, OUT moved bigint[], OUT more boolean, OUT continued boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_limit int := p_limit;
  v_waits boolean := false;
  v_signals bigint[];
  v_tasks bigint[];
  v_others bigint[];
  v_number bigint;
  v_node horsies_workflow_nodes;
  v_found record;
  v_code text;
BEGIN
  many := 0;
  moved := '{}';
  more := false;
  continued := false;

  IF p_limit > 0 THEN
    WITH ready AS MATERIALIZED (
      SELECT n.ctid
      FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_run.id
        AND n.status = 'READY'
        AND n.is_wait
        AND n.finished_at IS NULL
      LIMIT p_limit
    ),
    begun AS (
      UPDATE horsies_workflow_nodes n
      SET status = 'WAITING',
          due_at = coalesce(n.due_at, v_now + n.delay),
          opening = n.opening + 1,
          decided_by = NULL
      FROM ready r
      WHERE n.ctid = r.ctid
      RETURNING n.number, n.signal IS NOT NULL AND n.kind <> 'gate' AS takes_signals
    )
    SELECT
      count(*) = p_limit,
      array_agg(b.number ORDER BY b.number) FILTER (WHERE b.takes_signals)
    INTO v_waits, v_signals
    FROM begun b;

    moved := ARRAY(
      SELECT s.number
      FROM unnest(v_signals) AS s (number)
      WHERE horsies_give_signal(p_run.id, s.number, NULL, v_now)
    );
  END IF;

  IF p_run.max_in_flight IS NOT NULL THEN
    SELECT least(
      p_limit,
      p_run.max_in_flight - coalesce(sum(
        CASE WHEN n.kind IN ('map', 'undo') THEN n.in_flight ELSE 1 END
      ), 0)::int)
    INTO v_limit
    FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_run.id
      AND n.finished_at IS NULL
      AND (n.status = 'ENQUEUED' OR (n.status = 'READY' AND n.kind IN ('map', 'undo')));
  END IF;

  SELECT
    coalesce(array_agg(r.number) FILTER (WHERE r.kind = 'task'), '{}'),
    coalesce(array_agg(r.number ORDER BY r.number) FILTER (WHERE r.kind <> 'task'), '{}')
  INTO v_tasks, v_others
  FROM (
    SELECT n.number, n.kind
    FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_run.id
      AND n.status = 'READY'
      AND NOT n.is_wait
      AND n.finished_at IS NULL
    ORDER BY n.number
    LIMIT greatest(v_limit, 0)
  ) AS r;

  IF v_tasks <> '{}' THEN
    BEGIN
      many := horsies_send_all(
        array_fill(p_run.id, ARRAY[cardinality(v_tasks)]), v_tasks, p_max_bytes, p_now);
    EXCEPTION
      WHEN SQLSTATE 'HW001' OR data_exception OR integrity_constraint_violation
        OR program_limit_exceeded OR plpgsql_error THEN
        v_others := v_tasks || v_others;  -- one by one
    END;
  END IF;

  FOREACH v_number IN ARRAY v_others LOOP
    EXIT WHEN many >= v_limit;

    BEGIN
      SELECT n.* INTO v_node
      FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_run.id AND n.number = v_number;

      IF v_node.kind IN ('map', 'undo') THEN
        v_found := horsies_expand(p_run, v_node, v_limit - many, p_max_bytes, p_now);
        many := many + v_found.many;
        IF v_found.moved THEN
          moved := moved || v_number;
        END IF;
      ELSIF v_node.kind = 'workflow' THEN
        -- No other transaction sees the new run yet, so this does not lock two.
        v_node.task_id := horsies_uuid7(0);
        PERFORM horsies_send_run(
          v_node.task_id, v_node.graph - 'key'::text, v_node.graph -> 'nodes',
          horsies_node_kwargs(v_node, p_max_bytes), p_run.id, v_number, NULL,
          1000, p_max_bytes, p_channel, p_now);

        UPDATE horsies_workflow_nodes n
        SET status = 'ENQUEUED', task_id = v_node.task_id
        WHERE n.workflow_id = p_run.id AND n.number = v_number;

        many := many + 1;
      ELSIF v_node.kind = 'continue' THEN
        PERFORM horsies_continue_run(p_run, v_node, p_max_bytes, p_channel, p_now);
        moved := moved || v_number;
        many := many + 1;
        continued := true;
        RETURN;
      ELSE
        many := many + horsies_send_all(ARRAY[p_run.id], ARRAY[v_number], p_max_bytes, p_now);
      END IF;
    EXCEPTION
      WHEN SQLSTATE 'HW001' OR data_exception OR integrity_constraint_violation
        OR program_limit_exceeded OR plpgsql_error THEN
        GET STACKED DIAGNOSTICS v_code = PG_EXCEPTION_DETAIL;

        UPDATE horsies_workflow_nodes n
        SET status = CASE WHEN n.in_flight = 0 THEN 'FAILED' ELSE 'ENQUEUED' END,
            -- A map ends when its tasks have ended.
            finished_at = CASE WHEN n.in_flight = 0 THEN v_now END,
            expanded = CASE WHEN n.in_flight = 0 THEN n.expanded ELSE n.total END,
            items_bad = CASE
              WHEN n.in_flight = 0 THEN n.items_bad
              ELSE n.total - n.items_ok - n.in_flight
            END,
            error = SQLERRM,
            error_code = CASE WHEN SQLSTATE = 'HW001' THEN v_code ELSE 'NODE_NOT_SENT' END
        WHERE n.workflow_id = p_run.id AND n.number = v_number
        RETURNING CASE WHEN n.finished_at IS NULL THEN moved ELSE moved || v_number END
        INTO moved;
    END;
  END LOOP;

  more := (cardinality(v_tasks) + cardinality(v_others) >= v_limit OR v_others <> '{}')
    -- Less than allowed: a map passed over elements.
    AND (p_run.max_in_flight IS NULL OR many >= p_limit OR many < v_limit)
    AND EXISTS (
      SELECT FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_run.id AND n.status = 'READY' AND n.finished_at IS NULL
    )
    OR v_waits;
END
$$;
