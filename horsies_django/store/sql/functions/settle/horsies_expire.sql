-- Expires tasks that the caller has locked and found past their good_until before they started.
-- Moves PENDING, CLAIMED -> EXPIRED, and notifies processes that wait for results. Returns the ids.
-- Locks: rows that the caller has locked.
CREATE OR REPLACE FUNCTION horsies_expire(p_ids uuid[], p_now timestamptz, p_channel text) RETURNS uuid[] LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  UPDATE horsies_tasks t
  SET status = 'EXPIRED', finished_at = p_now, error_code = 'TASK_EXPIRED', parked = false,
      result = horsies_error_result('TASK_EXPIRED', 'the task was not started before its good_until')
  WHERE t.id = ANY (p_ids) AND t.status IN ('PENDING', 'CLAIMED');
  PERFORM horsies_notify_finished(p_channel, p_ids);
  RETURN p_ids;
END
$$;
