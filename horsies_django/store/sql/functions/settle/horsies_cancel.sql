-- Cancels tasks: waiting ones end at once, running ones are requested to end; with p_terminate
-- their process is killed if they do not. The worker of a running task is notified, and compares
-- its tasks with the table periodically in case that is lost.
-- This runs in the caller's transaction and takes no lock of a cap, which would delay workers. If a
-- task may have been the first one of its partition, the next one is unparked; see
-- horsies_lock_head. One of the tasks that were folded into one that never began takes its place,
-- see horsies_unfold.
-- Returns: a verdict per task: 'CANCELLED', 'REQUESTED' (it is running) or 'FINISHED'.
-- Moves: PENDING, CLAIMED -> CANCELLED.
-- Locks: the task rows, in the order of their ids; waits for a pass that holds one.
CREATE OR REPLACE FUNCTION horsies_cancel(p_ids uuid[], p_terminate boolean, p_channel text)
RETURNS TABLE (id uuid, verdict text) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz;
  v_ended uuid[];
  v_queues text[];
  v_keys text[];
  v_ordered uuid[];
BEGIN
  PERFORM
  FROM horsies_tasks t
  WHERE t.id = ANY (p_ids)
  ORDER BY t.id
  FOR NO KEY UPDATE;

  -- after the locks: a pass that held the rows may have started the next attempt
  v_now := clock_timestamp();

  WITH ended AS (
    UPDATE horsies_tasks t
    SET
      status = 'CANCELLED',
      finished_at = v_now,
      cancel_requested_at = v_now,
      error_code = 'TASK_CANCELLED',
      parked = false,
      result = horsies_error_result('TASK_CANCELLED', 'the task was cancelled before it started')
    WHERE t.id = ANY (p_ids) AND t.status IN ('PENDING', 'CLAIMED')
    RETURNING
      t.id, t.queue_name, t.partition_key, t.ordered AND t.claim_generation = 0 AS folds
  )
  SELECT
    coalesce(array_agg(e.id), '{}'),
    array_agg(e.queue_name::text) FILTER (WHERE e.partition_key IS NOT NULL),
    array_agg(e.partition_key) FILTER (WHERE e.partition_key IS NOT NULL),
    array_agg(e.id) FILTER (WHERE e.folds)
  INTO v_ended, v_queues, v_keys, v_ordered
  FROM ended e;

  IF v_ordered IS NOT NULL THEN
    PERFORM horsies_unfold(v_ordered, v_now);
  END IF;
  IF v_keys IS NOT NULL THEN
    PERFORM horsies_unpark_next(v_queues, v_keys, p_channel);
  END IF;
  PERFORM horsies_notify_finished(p_channel, v_ended);

  UPDATE horsies_tasks t
  SET
    cancel_requested_at = coalesce(t.cancel_requested_at, v_now),
    terminate = t.terminate OR p_terminate
  WHERE t.id = ANY (p_ids) AND t.status = 'RUNNING';

  PERFORM pg_notify(p_channel || '_' || t.claimed_by, 'cancel')
  FROM horsies_tasks t
  WHERE t.id = ANY (p_ids) AND t.status = 'RUNNING'
  GROUP BY t.claimed_by;

  RETURN QUERY
  SELECT
    t.id,
    CASE
      WHEN e.id IS NOT NULL THEN 'CANCELLED'
      WHEN t.status = 'RUNNING' THEN 'REQUESTED'
      ELSE 'FINISHED'
    END
  FROM horsies_tasks t
  LEFT JOIN unnest(v_ended) AS e (id) ON e.id = t.id
  WHERE t.id = ANY (p_ids);
END
$$;
