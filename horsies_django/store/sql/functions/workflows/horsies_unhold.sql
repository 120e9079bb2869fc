-- Lets tasks of a run that was resumed start again, p_many at most. A pause holds a task back that
-- waits for a retry: it moves enqueued_at far beyond next_retry_at. This function moves it back.
-- After the last of them, workers are notified of all waiting tasks of the run, also of tasks that
-- were due during the pause and that passes skipped.
-- Returns: whether held tasks may be left.
-- Locks: the held task rows; the caller holds the lock of the run.
-- Index: horsies_tasks_node, primary key.
CREATE OR REPLACE FUNCTION horsies_unhold(p_workflow uuid, p_many int, p_channel text)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_many int;
BEGIN
  UPDATE horsies_tasks t
  SET enqueued_at = t.next_retry_at
  WHERE t.id = ANY (ARRAY(
    SELECT h.id
    FROM horsies_tasks h
    WHERE h.workflow_id = p_workflow
      AND h.status = 'PENDING'
      AND h.enqueued_at > h.next_retry_at
    LIMIT p_many
    FOR NO KEY UPDATE
  ));
  GET DIAGNOSTICS v_many = ROW_COUNT;

  IF v_many < p_many THEN
    PERFORM pg_notify(
      p_channel || '_new', extract(epoch FROM min(t.enqueued_at)) || ' ' || t.queue_name)
    FROM horsies_tasks t
    WHERE t.workflow_id = p_workflow AND t.status = 'PENDING'
    GROUP BY t.queue_name;
  END IF;

  RETURN v_many = p_many;
END
$$;
