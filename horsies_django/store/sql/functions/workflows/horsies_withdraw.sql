-- Withdraws the tasks of a run that no worker has tried yet: their rows are deleted, and their
-- nodes wait to be sent again. For a pause, tasks that wait for a retry are then due in the year
-- 9999, so that scans do not read them during the pause; see horsies_unhold.
-- A task to which rows of the project refer stays as it is, and does not start during the pause;
-- see horsies_forbidding.
-- Args: p_number is the node whose tasks are withdrawn; NULL for all, because of a pause. p_many is
-- the maximum of tasks; NULL for all.
-- Returns: how many tasks it withdrew or put off.
-- Moves: tasks PENDING -> (none); nodes ENQUEUED -> READY.
-- Locks: task rows, skipping locked ones (they have started, or the claim calls
-- horsies_forbidding); the caller holds the lock of the run.
-- Index: horsies_tasks_node, primary keys.
CREATE OR REPLACE FUNCTION horsies_withdraw(p_workflow uuid, p_number bigint, p_many int)
RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  c_held CONSTANT timestamptz := '9999-01-01 00:00+00';
  v_ids uuid[];
  v_kept uuid[];
  v_many int;
  v_held int;
  v_queues text[];
  v_keys text[];
BEGIN
  v_ids := ARRAY(
    SELECT w.id
    FROM horsies_tasks w
    WHERE w.workflow_id = p_workflow
      AND w.node IS NOT NULL
      AND (p_number IS NULL OR w.node = p_number)
      AND w.status = 'PENDING'
      AND w.retry_count = 0
      AND coalesce(w.snooze_count, 0) = 0
    LIMIT p_many
    FOR UPDATE SKIP LOCKED
  );
  v_kept := horsies_referenced('horsies_tasks', v_ids);

  WITH withdrawn AS (
    DELETE FROM horsies_tasks task
    WHERE task.id = ANY (v_ids) AND task.id <> ALL (v_kept)
    RETURNING task.node, task.node_index, task.queue_name, task.partition_key
  ),
  counted AS (
    SELECT withdrawn_task.node, min(withdrawn_task.node_index) AS first, count(*)::int AS many
    FROM withdrawn withdrawn_task
    GROUP BY withdrawn_task.node
  ),
  freed AS (
    UPDATE horsies_workflow_nodes freed_node
    SET status = 'READY',
        task_id = NULL,
        expanded = CASE
          WHEN freed_node.kind IN ('map', 'undo') THEN least(freed_node.expanded, tally.first)
          ELSE 0
        END,
        in_flight = CASE
          WHEN freed_node.kind IN ('map', 'undo') THEN freed_node.in_flight - tally.many
          ELSE 0
        END
    FROM counted tally
    CROSS JOIN LATERAL horsies_address(p_workflow, tally.node) AS node_row
    WHERE freed_node.ctid = node_row.address AND freed_node.status IN ('READY', 'ENQUEUED')
  )
  SELECT
    coalesce((SELECT sum(tally.many) FROM counted tally), 0),
    array_agg(withdrawn_task.queue_name::text),
    array_agg(withdrawn_task.partition_key)
  INTO v_many, v_queues, v_keys
  FROM withdrawn withdrawn_task
  WHERE withdrawn_task.partition_key IS NOT NULL;

  PERFORM horsies_unpark_next(v_queues, v_keys, horsies_channel());

  UPDATE horsies_tasks t
  SET enqueued_at = c_held, parked = false
  WHERE p_number IS NULL
    AND t.id = ANY (ARRAY(
      SELECT h.id
      FROM horsies_tasks h
      WHERE h.workflow_id = p_workflow
        AND h.status = 'PENDING'
        AND h.next_retry_at IS NOT NULL
        AND h.enqueued_at < c_held
      LIMIT p_many - v_many
      FOR NO KEY UPDATE SKIP LOCKED
    ));
  GET DIAGNOSTICS v_held = ROW_COUNT;

  RETURN v_many + v_held;
END
$$;
