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
    UPDATE horsies_tasks task
    SET advanced_at = p_now
    WHERE task.id = ANY (ARRAY(
      SELECT finished_task.id
      FROM horsies_tasks finished_task
      WHERE finished_task.id = ANY (v_tasks)
        AND finished_task.workflow_id IS NOT DISTINCT FROM p_workflow
        AND finished_task.advanced_at IS NULL
        -- "finished_at IS NOT NULL" may read all finished tasks that exist.
        AND finished_task.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
      FOR NO KEY UPDATE SKIP LOCKED
    ))
    RETURNING
      task.id,
      task.node,
      task.status,
      task.error_code,
      task.result #>> '{err,message}' AS message,
      task.status <> 'CANCELLED'
      OR task.started_at IS NOT NULL
      OR task.retry_count > 0
      OR task.snooze_count > 0 AS begun
  ),
  of_tasks AS (
    UPDATE horsies_workflow_nodes task_node
    SET status = CASE
          WHEN taken_task.error_code = 'TASK_SKIPPED' THEN 'SKIPPED'
          ELSE taken_task.status
        END,
        finished_at = p_now,
        error_code = taken_task.error_code,
        error = taken_task.message
    FROM taken taken_task
    CROSS JOIN LATERAL horsies_address(p_workflow, taken_task.node) AS node_row
    WHERE task_node.ctid = node_row.address
      AND task_node.kind = 'task'
      AND task_node.task_id = taken_task.id
      AND task_node.status = 'ENQUEUED'
    RETURNING task_node.number
  ),
  of_maps AS (
    UPDATE horsies_workflow_nodes map_node
    SET in_flight = map_node.in_flight - tally.many,
        items_ok = map_node.items_ok + tally.many - tally.bad,
        items_bad = map_node.items_bad + tally.bad,
        error = coalesce(map_node.error, tally.error)
    FROM (
      SELECT
        taken_task.node,
        count(*)::int AS many,
        (count(*) FILTER (WHERE taken_task.bad))::int AS bad,
        min(concat_ws(': ', coalesce(taken_task.error_code, taken_task.status), taken_task.message))
          FILTER (WHERE taken_task.bad AND taken_task.begun) AS error
      FROM (
        SELECT
          taken_task.*,
          taken_task.status <> 'COMPLETED'
          AND taken_task.error_code IS DISTINCT FROM 'TASK_SKIPPED' AS bad
        FROM taken taken_task
      ) AS taken_task
      GROUP BY taken_task.node
    ) AS tally
    CROSS JOIN LATERAL horsies_address(p_workflow, tally.node) AS node_row
    WHERE map_node.ctid = node_row.address
      AND map_node.kind IN ('map', 'undo')
      AND map_node.status IN ('READY', 'ENQUEUED')
    RETURNING map_node.number
  )
  SELECT
    ARRAY(SELECT ended_node.number FROM of_tasks ended_node),
    ARRAY(SELECT ended_node.number FROM of_maps ended_node)
  INTO v_moved, v_maps;

  RETURN v_moved
    || CASE WHEN v_maps <> '{}' THEN horsies_close_maps(p_workflow, v_maps, p_now) END;
END
$$;
