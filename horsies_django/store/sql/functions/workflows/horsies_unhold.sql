-- Lets the tasks of a run that is not paused any more start again: those that the pause held back are due when their retries are, and the
-- workers are woken for them and for others that it did not let start.
-- Locks: the held task rows; the caller holds the lock of the run. Index: horsies_tasks_node.
CREATE FUNCTION horsies_unhold(p_workflow uuid, p_channel text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  UPDATE horsies_tasks t SET enqueued_at = t.next_retry_at
  WHERE t.workflow_id = p_workflow AND t.status = 'PENDING' AND t.enqueued_at > t.next_retry_at;
  PERFORM pg_notify(p_channel || '_new', extract(epoch FROM min(t.enqueued_at)) || ' ' || t.queue_name)
  FROM horsies_tasks t WHERE t.workflow_id = p_workflow AND t.status = 'PENDING' GROUP BY t.queue_name;
END
$$;
