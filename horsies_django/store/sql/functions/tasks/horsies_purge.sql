-- Cancels those of some tasks that still wait and belong to no workflow run; tasks that a worker has claimed meanwhile are left to it.
-- Moves PENDING -> CANCELLED. Returns how many.
-- Locks: the task rows, skipping locked ones. Index: primary key.
CREATE FUNCTION horsies_purge(p_ids uuid[], p_channel text) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_ended uuid[];
BEGIN
  WITH picked AS MATERIALIZED (
    SELECT t.id FROM horsies_tasks t
    WHERE t.id = ANY (p_ids) AND t.status = 'PENDING' AND t.workflow_id IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
  ), ended AS (
    UPDATE horsies_tasks t
    SET status = 'CANCELLED', finished_at = v_now, cancel_requested_at = v_now, error_code = 'TASK_CANCELLED', parked = false,
        result = horsies_error_result('TASK_CANCELLED', 'the task was cancelled before it started')
    WHERE t.id = ANY (ARRAY(SELECT picked.id FROM picked)) AND t.status = 'PENDING' RETURNING t.id
  )
  SELECT coalesce(array_agg(e.id), '{}') INTO v_ended FROM ended e;
  PERFORM horsies_notify_finished(p_channel, v_ended);
  RETURN cardinality(v_ended);
END
$$;
