-- Takes finished tasks of a run into account, once each: their nodes get their status, maps count
-- them. A task that its node has replaced is ignored.
-- Args: p_tasks has the tasks; NULL for all of the run.
-- Returns: the nodes that are final now.
-- Moves: nodes ENQUEUED -> COMPLETED, FAILED, CANCELLED, EXPIRED, SKIPPED; maps and undos, also
-- READY ones, as horsies_close_maps.
-- Locks: task rows, skipping locked ones; the caller holds the lock of the run.
-- Index: primary keys, horsies_tasks_node.
CREATE OR REPLACE FUNCTION horsies_take_tasks(
  p_workflow uuid, p_tasks uuid[], p_now timestamptz
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_tasks uuid[] := coalesce(p_tasks, ARRAY(
    SELECT t.id
    FROM horsies_tasks t
    WHERE t.workflow_id = p_workflow AND t.finished_at IS NOT NULL AND t.advanced_at IS NULL
  ));
  v_moved bigint[];
  v_maps bigint[];
BEGIN
  IF v_tasks = '{}' THEN
    RETURN '{}';
  END IF;

  WITH taken AS (
    UPDATE horsies_tasks t
    SET advanced_at = p_now
    WHERE t.id = ANY (ARRAY(
      SELECT d.id
      FROM horsies_tasks d
      WHERE d.id = ANY (v_tasks)
        AND d.workflow_id IS NOT DISTINCT FROM p_workflow
        AND d.advanced_at IS NULL
        -- "finished_at IS NOT NULL" may read all finished tasks that exist.
        AND d.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
      FOR NO KEY UPDATE SKIP LOCKED
    ))
    RETURNING
      t.id,
      t.node,
      t.status,
      t.error_code,
      t.result #>> '{err,message}' AS message,
      t.status <> 'CANCELLED'
      OR t.started_at IS NOT NULL
      OR t.retry_count > 0
      OR t.snooze_count > 0 AS begun
  ),
  of_tasks AS (
    UPDATE horsies_workflow_nodes n
    SET status = CASE WHEN t.error_code = 'TASK_SKIPPED' THEN 'SKIPPED' ELSE t.status END,
        finished_at = p_now,
        error_code = t.error_code,
        error = t.message
    FROM taken t
    CROSS JOIN LATERAL horsies_address(p_workflow, t.node) AS a
    WHERE n.ctid = a.address
      AND n.kind = 'task'
      AND n.task_id = t.id
      AND n.status = 'ENQUEUED'
    RETURNING n.number
  ),
  of_maps AS (
    UPDATE horsies_workflow_nodes n
    SET in_flight = n.in_flight - c.many,
        items_ok = n.items_ok + c.many - c.bad,
        items_bad = n.items_bad + c.bad,
        error = coalesce(n.error, c.error)
    FROM (
      SELECT
        t.node,
        count(*)::int AS many,
        (count(*) FILTER (WHERE t.bad))::int AS bad,
        min(concat_ws(': ', coalesce(t.error_code, t.status), t.message))
          FILTER (WHERE t.bad AND t.begun) AS error
      FROM (
        SELECT
          t.*,
          t.status <> 'COMPLETED' AND t.error_code IS DISTINCT FROM 'TASK_SKIPPED' AS bad
        FROM taken t
      ) AS t
      GROUP BY t.node
    ) AS c
    CROSS JOIN LATERAL horsies_address(p_workflow, c.node) AS a
    WHERE n.ctid = a.address
      AND n.kind IN ('map', 'undo')
      AND n.status IN ('READY', 'ENQUEUED')
    RETURNING n.number
  )
  SELECT ARRAY(SELECT o.number FROM of_tasks o), ARRAY(SELECT o.number FROM of_maps o)
  INTO v_moved, v_maps;

  RETURN v_moved
    || CASE WHEN v_maps <> '{}' THEN horsies_close_maps(p_workflow, v_maps, p_now) END;
END
$$;
