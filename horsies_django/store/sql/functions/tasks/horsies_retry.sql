-- Makes a task run again under its id. A task that did not complete becomes due now; its attempts
-- are kept, the numbers of the next ones continue theirs, and its retry policy and the count of its
-- crashes begin anew. A task that waits for a retry becomes due at once. It takes the place in the
-- order of its partition that it had.
--
-- Args: p_channel: workers are woken on it; NULL: they are not.
--   p_patience: the longest wait for each lock.
--   p_spread: the task is due within that time from now, at random; NULL: now.
-- Returns: verdict, NULL if there is no such task: 'RETRIED', 'HASTENED', 'REDACTED',
--   'MERGED' (into "other"), 'IN_WORKFLOW' (of the run "other"),
--   'DUPLICATE' (of the unique task "other"),
--   'LOCKED' (an open transaction sends or retries the same work, or holds a task that is to be
--   cancelled because this one failed), or else the status of the task.
-- Moves: FAILED, CANCELLED, EXPIRED -> PENDING; and as horsies_cancel_behind.
-- Locks: the task row, and that of its digest; waits for their holders, p_patience at most for
--   each, and then raises lock_not_available for the task row. Each wait is a statement of its own:
--   the statements after it read what the holder did. See also horsies_cancel_behind.
CREATE OR REPLACE FUNCTION horsies_retry(
  p_id uuid, p_channel text, p_patience text, p_spread interval DEFAULT NULL,
  OUT verdict text, OUT other uuid
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_patience text := current_setting('lock_timeout');
  v_task horsies_tasks;
  v_now timestamptz;
  v_digest bytea;
BEGIN
  PERFORM set_config('lock_timeout', p_patience, true);
  SELECT t.* INTO v_task FROM horsies_tasks t WHERE t.id = p_id FOR NO KEY UPDATE;
  PERFORM set_config('lock_timeout', v_patience, true);
  IF v_task.id IS NULL THEN
    RETURN;
  END IF;

  v_now := clock_timestamp() + coalesce(p_spread, '0') * random();

  IF v_task.status = 'PENDING' AND v_task.next_retry_at > v_now THEN
    verdict := 'HASTENED';
    UPDATE horsies_tasks t SET enqueued_at = v_now, next_retry_at = v_now WHERE t.id = p_id;
  ELSIF v_task.status NOT IN ('FAILED', 'CANCELLED', 'EXPIRED')
    OR v_task.redacted_at IS NOT NULL
    OR v_task.workflow_id IS NOT NULL
    OR v_task.merged_into IS NOT NULL
  THEN
    verdict := CASE
      WHEN v_task.redacted_at IS NOT NULL THEN 'REDACTED'
      WHEN v_task.merged_into IS NOT NULL THEN 'MERGED'
      WHEN v_task.finished_at IS NULL THEN v_task.status
      WHEN v_task.workflow_id IS NOT NULL THEN 'IN_WORKFLOW'
      ELSE v_task.status
    END;
    other := coalesce(v_task.merged_into, v_task.workflow_id);
    RETURN;
  ELSE
    IF v_task.order_stop = 'cancel' THEN  -- the tasks behind it are still being cancelled
      LOOP
        EXIT WHEN horsies_cancel_behind(p_id, 1000, horsies_channel()) = 0;
      END LOOP;

      IF EXISTS (
        SELECT FROM horsies_tasks t WHERE t.id = p_id AND t.order_stop IS NOT NULL
      ) THEN
        verdict := 'LOCKED';
        RETURN;
      END IF;
    END IF;

    v_digest := horsies_unique_digest(v_task.options);
    IF v_digest IS NOT NULL THEN
      BEGIN
        other := (
          horsies_take_digest(
            v_digest, p_id, NULL, v_task.options #>> '{unique,until}', NULL, p_patience,
            clock_timestamp()
          )
        ).holder;
      EXCEPTION WHEN lock_not_available THEN
        verdict := 'LOCKED';
        RETURN;
      END;

      IF other <> p_id THEN
        verdict := 'DUPLICATE';
        RETURN;
      END IF;

      other := NULL;
    END IF;

    verdict := 'RETRIED';
    UPDATE horsies_tasks task
    SET
      status = 'PENDING', enqueued_at = v_now, good_until = NULL,
      claimed_by = NULL, claimed_at = NULL, claim_expires_at = NULL,
      started_at = NULL, finished_at = NULL,
      cancel_requested_at = NULL, terminate = false,
      retry_count = 0, snooze_count = NULL, next_retry_at = NULL,
      result = NULL, error_code = NULL, order_stop = NULL,
      ordered = CASE WHEN queue.partition_policy IS NOT NULL THEN true END,
      partition_version = queue.partition_version,
      partition_key = CASE
        WHEN task.partition_version = queue.partition_version THEN task.partition_key
        ELSE
          horsies_partition_key(
            queue.partition_by_args, queue.partition_by_task, task.kwargs, task.task_name,
            task.codec
          )
      END,
      attempts_before = (
        SELECT max(least(earlier.attempt, 32766))
        FROM horsies_task_attempts earlier
        WHERE earlier.task_id = p_id AND earlier.outcome <> 'SNOOZED'
      )
    FROM (SELECT) AS one
    LEFT JOIN horsies_queues queue ON queue.name = v_task.queue_name
    WHERE task.id = p_id;
  END IF;

  IF p_channel IS NOT NULL THEN
    PERFORM pg_notify(p_channel || '_new', extract(epoch FROM v_now) || ' ' || v_task.queue_name);
  END IF;
END
$$;
