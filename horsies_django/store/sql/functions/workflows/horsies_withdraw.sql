-- Withdraws the tasks of a run that no worker has tried yet: their rows are deleted, and their nodes wait to be sent again.
-- Moves tasks PENDING -> (none); nodes ENQUEUED -> READY.
-- Locks: task rows, skipping locked ones (those start); the caller holds the lock of the run. Index: horsies_tasks_node, primary keys.
CREATE FUNCTION horsies_withdraw(p_workflow uuid, p_number bigint) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_many int;
BEGIN
  WITH waiting AS MATERIALIZED (
    SELECT t.id FROM horsies_tasks t
    WHERE t.workflow_id = p_workflow AND t.node IS NOT NULL AND (p_number IS NULL OR t.node = p_number)
      AND t.status = 'PENDING' AND t.retry_count = 0
    FOR UPDATE SKIP LOCKED
  ), withdrawn AS (
    DELETE FROM horsies_tasks t WHERE t.id = ANY (ARRAY(SELECT w.id FROM waiting w)) RETURNING t.workflow_id, t.node, t.node_index
  ), counted AS (
    SELECT w.workflow_id, w.node, min(w.node_index) AS first, count(*)::int AS many FROM withdrawn w GROUP BY w.workflow_id, w.node
  ), freed AS (
    UPDATE horsies_workflow_nodes n
    SET status = 'READY', task_id = NULL, expanded = CASE WHEN n.kind IN ('map', 'undo') THEN least(n.expanded, c.first) ELSE 0 END,
        in_flight = CASE WHEN n.kind IN ('map', 'undo') THEN n.in_flight - c.many ELSE 0 END
    FROM counted c WHERE n.workflow_id = c.workflow_id AND n.number = c.node AND n.status IN ('READY', 'ENQUEUED')
  )
  SELECT coalesce(sum(c.many), 0) INTO v_many FROM counted c;
  RETURN v_many;
END
$$;
