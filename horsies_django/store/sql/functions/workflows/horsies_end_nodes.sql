-- Ends part of a run that was cancelled, was stopped by a failure, or continued as another one: its
-- nodes that have not started, and the tasks of the others. Undo nodes are left. After a stop,
-- nodes that run when others ended are left, too.
-- A map ends when its tasks have ended; until then, its expanded is the place from which on tasks
-- were cancelled or have a cancel request, and items_bad counts elements without a task.
--
-- Args: p_many is the largest number of nodes to end, and of tasks.
-- Returns: moved has the nodes that are final now; more is true if others may be left.
-- Moves: nodes PENDING, READY, WAITING -> CANCELLED; READY (maps) -> ENQUEUED; tasks as
-- horsies_cancel, with their nodes.
-- Locks: task rows, in the order of their ids; the caller holds the lock of the run.
-- Index: horsies_workflow_nodes_open, horsies_tasks_node, primary keys.
CREATE OR REPLACE FUNCTION horsies_end_nodes(
  p_run horsies_workflows, p_many int, p_channel text, p_now timestamptz,
  OUT moved bigint[], OUT more boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_spared text[] := CASE
    WHEN p_run.finished_at IS NULL AND p_run.status <> 'COMPENSATING' THEN '{failed,finished}'
    ELSE '{}'
  END;
  v_tasks uuid[];
  v_left int;
  v_map record;
BEGIN
  WITH open AS MATERIALIZED (
    SELECT n.ctid
    FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_run.id
      AND n.finished_at IS NULL
      AND n.status IN ('PENDING', 'READY', 'WAITING')
      AND n.kind <> 'undo'
      AND n.rule <> ALL (v_spared)
    LIMIT p_many
  ), ended AS (
    UPDATE horsies_workflow_nodes n
    SET
      status = CASE WHEN n.in_flight > 0 THEN 'ENQUEUED' ELSE 'CANCELLED' END,
      finished_at = CASE WHEN n.in_flight = 0 THEN p_now END,
      expanded = CASE WHEN n.in_flight > 0 THEN n.total ELSE n.expanded END,
      items_bad = CASE
        WHEN n.in_flight > 0 THEN n.total - n.items_ok - n.in_flight
        ELSE n.items_bad
      END,
      error_code = CASE
        WHEN p_run.continued_as IS NULL THEN 'WORKFLOW_CANCELLED'
        ELSE 'WORKFLOW_CONTINUED'
      END,
      error = CASE
        WHEN p_run.continued_as IS NOT NULL THEN 'the run continued as another one'
        WHEN v_spared = '{}' THEN 'the workflow was cancelled'
        ELSE 'the run stopped because a node failed'
      END
    FROM open o
    WHERE n.ctid = o.ctid
    RETURNING n.number, n.finished_at
  )
  SELECT
    coalesce(array_agg(e.number) FILTER (WHERE e.finished_at IS NOT NULL), '{}'),
    count(*) = p_many
  INTO moved, more
  FROM ended e;

  v_tasks := ARRAY(
    SELECT t.id
    FROM horsies_workflow_nodes n
    CROSS JOIN LATERAL (SELECT x.* FROM horsies_tasks x WHERE x.id = n.task_id OFFSET 0) AS t
    WHERE n.workflow_id = p_run.id
      AND n.finished_at IS NULL
      AND n.status = 'ENQUEUED'
      AND n.kind = 'task'
      AND n.rule <> ALL (v_spared)
      AND t.finished_at IS NULL
      AND (t.cancel_requested_at IS NULL OR t.status <> 'RUNNING')
    LIMIT p_many
  );

  v_left := p_many - cardinality(v_tasks);

  FOR v_map IN
    SELECT n.number, n.expanded
    FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_run.id
      AND n.finished_at IS NULL
      AND n.status = 'ENQUEUED'
      AND n.kind = 'map'
      AND n.rule <> ALL (v_spared)
      AND n.expanded > 0
  LOOP
    EXIT WHEN v_left = 0;

    v_tasks := v_tasks || ARRAY(
      SELECT t.id
      FROM horsies_tasks t
      WHERE t.workflow_id = p_run.id
        AND t.node = v_map.number
        AND t.node_index >= v_map.expanded - v_left
        AND t.node_index < v_map.expanded
        AND t.finished_at IS NULL
    );

    UPDATE horsies_workflow_nodes n
    SET expanded = greatest(v_map.expanded - v_left, 0)
    WHERE n.workflow_id = p_run.id AND n.number = v_map.number;

    v_left := greatest(v_left - v_map.expanded, 0);
  END LOOP;

  PERFORM horsies_cancel(v_tasks, false, p_channel);
  moved := moved || horsies_take_tasks(p_run.id, v_tasks, p_now);
  more := more OR v_left = 0;
END
$$;
