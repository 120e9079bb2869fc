-- Cancel: tasks that have not started end at once; those that run are asked to end, and p_terminate has their process killed if they
-- do not. The worker that runs one hears of it by a notification, or at the latest when it next compares notes with the table.
-- Runs in the caller's transaction, so it takes no lock of a cap, which workers would wait for: a permit that waited for a cancelled
-- head of a partition is found by the net that the reapers cast.
-- Moves PENDING, CLAIMED -> CANCELLED. Returns each task's verdict: 'CANCELLED', 'REQUESTED' (it runs) or 'FINISHED' (it was over).
-- Locks: the task rows, in the order of their ids; waits for a pass that holds one. Index: primary key.
CREATE FUNCTION horsies_cancel(p_ids uuid[], p_terminate boolean, p_channel text)
RETURNS TABLE (id uuid, verdict text) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz;
  v_ended uuid[];
BEGIN
  PERFORM FROM horsies_tasks t WHERE t.id = ANY (p_ids) ORDER BY t.id FOR NO KEY UPDATE;
  v_now := clock_timestamp();  -- not before: a pass that held the rows may have started the next attempt meanwhile
  WITH ended AS (
    UPDATE horsies_tasks t
    SET status = 'CANCELLED', finished_at = v_now, cancel_requested_at = v_now, error_code = 'TASK_CANCELLED', parked = false,
        result = horsies_error_result('TASK_CANCELLED', 'the task was cancelled before it started')
    WHERE t.id = ANY (p_ids) AND t.status IN ('PENDING', 'CLAIMED') RETURNING t.id
  )
  SELECT coalesce(array_agg(e.id), '{}') INTO v_ended FROM ended e;
  PERFORM horsies_notify_finished(p_channel, v_ended);
  UPDATE horsies_tasks t
  SET cancel_requested_at = coalesce(t.cancel_requested_at, v_now), terminate = t.terminate OR p_terminate
  WHERE t.id = ANY (p_ids) AND t.status = 'RUNNING';
  PERFORM pg_notify(p_channel || '_new', 'cancel ' || t.claimed_by)
  FROM horsies_tasks t WHERE t.id = ANY (p_ids) AND t.status = 'RUNNING' GROUP BY t.claimed_by;
  RETURN QUERY
  SELECT t.id, CASE WHEN t.id = ANY (v_ended) THEN 'CANCELLED' WHEN t.status = 'RUNNING' THEN 'REQUESTED' ELSE 'FINISHED' END
  FROM horsies_tasks t WHERE t.id = ANY (p_ids);
END
$$;
