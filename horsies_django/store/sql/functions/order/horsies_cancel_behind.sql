-- Cancels the waiting tasks of a partition that were sent after a task that failed, and before it
-- failed; p_many at most. The partition goes on once none of them is left. Does nothing if the
-- failed task does not cancel others, or if its row is locked.
-- Returns: how many tasks it has cancelled.
-- Moves: PENDING -> CANCELLED, with the code ORDER_CANCELLED.
-- Locks: the row of the failed task and the rows of the others, skipping locked ones.
-- Index: horsies_tasks_order, whose condition the queries repeat.
CREATE OR REPLACE FUNCTION horsies_cancel_behind(p_failed uuid, p_many int, p_channel text)
RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_failed horsies_tasks;
  v_ids uuid[];
BEGIN
  SELECT t.*
  INTO v_failed
  FROM horsies_tasks t
  WHERE t.id = p_failed AND t.order_stop = 'cancel'
  FOR NO KEY UPDATE SKIP LOCKED;

  IF NOT FOUND THEN
    RETURN 0;
  END IF;

  v_ids := ARRAY(
    SELECT t.id
    FROM horsies_tasks t
    WHERE t.queue_name = v_failed.queue_name
      AND t.partition_key = v_failed.partition_key
      AND t.ordered
      AND (t.finished_at IS NULL OR t.order_stop IS NOT NULL)
      AND t.finished_at IS NULL
      AND t.claimed_by IS NULL
      AND (t.sent_at, t.id) > (v_failed.sent_at, v_failed.id)
      AND t.sent_at <= v_failed.finished_at
    ORDER BY least(t.claim_generation, 1) DESC, t.sent_at, t.id
    LIMIT p_many
    FOR NO KEY UPDATE SKIP LOCKED
  );

  UPDATE horsies_tasks t
  SET
    status = 'CANCELLED',
    finished_at = clock_timestamp(),
    error_code = 'ORDER_CANCELLED',
    parked = false,
    result = horsies_error_result(
      'ORDER_CANCELLED',
      format('task %s, which came before it in the order of its partition, failed', p_failed)
    )
  WHERE t.id = ANY (v_ids) AND t.status = 'PENDING';

  PERFORM horsies_notify_finished(p_channel, v_ids);

  IF NOT EXISTS (  -- also none that was locked
    SELECT FROM horsies_tasks t
    WHERE t.queue_name = v_failed.queue_name
      AND t.partition_key = v_failed.partition_key
      AND t.ordered
      AND (t.finished_at IS NULL OR t.order_stop IS NOT NULL)
      AND t.finished_at IS NULL
      AND t.claimed_by IS NULL
      AND (t.sent_at, t.id) > (v_failed.sent_at, v_failed.id)
      AND t.sent_at <= v_failed.finished_at
  ) THEN
    UPDATE horsies_tasks t
    SET
      order_stop = NULL,
      partition_key = CASE WHEN t.redacted_at IS NULL THEN t.partition_key END
    WHERE t.id = p_failed;
  END IF;
  RETURN cardinality(v_ids);
END
$$;
