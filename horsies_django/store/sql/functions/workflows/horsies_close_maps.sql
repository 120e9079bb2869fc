-- Updates the status of maps, and of undo nodes, whose tasks were all sent or have all finished.
-- A map none of whose tasks has begun is CANCELLED: nothing completed, and no error was noted. A
-- map that could not be sent as a whole has its error_code already: it is CANCELLED if its run was
-- ended, see horsies_end_nodes, otherwise FAILED.
--
-- Returns: moved has the nodes that are final now.
-- Moves: nodes READY -> ENQUEUED, COMPLETED, FAILED, CANCELLED; ENQUEUED -> COMPLETED, FAILED,
-- CANCELLED.
-- Locks: none; the caller holds the lock of the run.
-- Index: primary key, horsies_tasks_node.
CREATE OR REPLACE FUNCTION horsies_close_maps(
  p_workflow uuid, p_numbers bigint[], p_now timestamptz, OUT moved bigint[]
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  WITH closed AS (
    UPDATE horsies_workflow_nodes n
    SET
      status = CASE
        WHEN n.in_flight > 0 THEN 'ENQUEUED'
        WHEN n.items_bad = 0 THEN 'COMPLETED'
        WHEN n.error_code IN ('WORKFLOW_CANCELLED', 'WORKFLOW_CONTINUED') THEN 'CANCELLED'
        WHEN n.kind = 'map' AND n.items_ok = 0 AND n.error IS NULL THEN 'CANCELLED'
        ELSE 'FAILED'
      END,
      finished_at = CASE WHEN n.in_flight = 0 THEN p_now END,
      error_code = CASE
        WHEN n.in_flight > 0 OR n.items_bad = 0 OR n.error_code IS NOT NULL THEN n.error_code
        WHEN n.kind = 'map' THEN
          CASE
            WHEN n.items_ok = 0 AND n.error IS NULL THEN 'TASK_CANCELLED'
            ELSE 'MAP_FAILED'
          END
        ELSE (
          SELECT t.error_code
          FROM horsies_tasks t
          WHERE t.workflow_id = p_workflow
            AND t.node = n.number
            AND t.status <> 'COMPLETED'
            AND t.error_code <> 'TASK_SKIPPED'
          ORDER BY t.node_index
          LIMIT 1
        )
      END,
      error = CASE
        WHEN n.in_flight > 0 OR n.items_bad = 0 OR n.error_code IS NOT NULL THEN n.error
        WHEN n.task_id IS NOT NULL THEN (
          SELECT t.result #>> '{err,message}'
          FROM horsies_tasks t
          WHERE t.id = n.task_id
        )
        ELSE concat(
          n.items_bad, ' of ',
          CASE n.kind WHEN 'map' THEN n.total ELSE n.items_ok + n.items_bad END,
          ' tasks did not complete', '; one of them: ' || n.error)
      END,
      total = CASE
        WHEN n.kind = 'undo' AND n.in_flight = 0
        THEN n.items_ok + n.items_bad  -- some did not begin
        ELSE n.total
      END
    FROM unnest(p_numbers) AS m (number)
    CROSS JOIN LATERAL horsies_address(p_workflow, m.number) AS a
    WHERE n.ctid = a.address
      AND n.kind IN ('map', 'undo')
      AND (
        n.status = 'READY' AND n.expanded >= n.total
        OR n.status = 'ENQUEUED' AND n.in_flight = 0
      )
    RETURNING n.number, n.finished_at
  )
  SELECT coalesce(array_agg(c.number) FILTER (WHERE c.finished_at IS NOT NULL), '{}')
  INTO moved
  FROM closed c;
END
$$;
