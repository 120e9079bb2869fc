-- Writes the outcomes of running tasks with their attempts, fenced by worker and claim generation. A failed task that is retried waits for
-- its next attempt, and the workers of its queue are notified when that is due.
-- Moves RUNNING -> COMPLETED, FAILED, CANCELLED, PENDING. Returns the ids that were written, with their queues and partitions (which have a
-- permit more now), and those that are final. The caller looks up missing ones. in_runs: [run, id] of final ones in a workflow.
-- decided: for the log, by id, retries {"retry": its number, "of": the most, "at": an epoch} and {"code": "POISON"}.
-- A batch without failures skips everything about retries and exceptions, which saves a seventh of the time. p_now replaces the clock in
-- tests.
-- Locks: the task rows, skipping locked ones; the next pass tries these again. Index: primary keys.
CREATE FUNCTION horsies_settle(p_worker uuid, p_outcomes jsonb, p_max_crashes int, p_channel text, p_now timestamptz,
                               OUT ids uuid[], OUT queues text[], OUT keys text[], OUT finals uuid[], OUT decided jsonb, OUT in_runs uuid[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
  IF NOT p_outcomes @> '[{"status": "FAILED"}]' THEN
    WITH outcome AS MATERIALIZED (
      SELECT * FROM jsonb_to_recordset(p_outcomes) AS o (
        id uuid, generation int, status text, result text, error_code text, error_message text, child_pid int)
    ), held AS MATERIALIZED (
      SELECT t.id FROM horsies_tasks t
      WHERE t.id = ANY (ARRAY(SELECT outcome.id FROM outcome)) AND t.claimed_by = p_worker AND t.status = 'RUNNING'
      FOR NO KEY UPDATE SKIP LOCKED
    ), settled AS (
      UPDATE horsies_tasks t SET status = o.status, finished_at = v_now, result = o.result::horsies_json, error_code = o.error_code
      FROM outcome o
      WHERE t.id = ANY (ARRAY(SELECT held.id FROM held)) AND o.id = t.id
        AND t.claim_generation = o.generation AND t.claimed_by = p_worker AND t.status = 'RUNNING'
      RETURNING t.id, t.claim_generation, t.queue_name, t.partition_key, t.retry_count, t.started_at, t.workflow_id, o.status, o.error_code,
                o.error_message, o.child_pid
    ), attempt AS (
      INSERT INTO horsies_task_attempts (task_id, attempt, claim_generation, outcome, will_retry, started_at, finished_at,
                                         error_code, error_message, worker_id, child_pid)
      SELECT s.id, s.retry_count + 1, s.claim_generation, s.status, false, s.started_at, v_now, s.error_code, s.error_message, p_worker,
             s.child_pid
      FROM settled s
    )
    SELECT coalesce(array_agg(s.id), '{}'), coalesce(array_agg(s.queue_name::text), '{}'), coalesce(array_agg(s.partition_key), '{}'),
           array_agg(ARRAY[s.workflow_id, s.id]) FILTER (WHERE s.workflow_id IS NOT NULL)
    INTO ids, queues, keys, in_runs FROM settled s;
    finals := ids;
    RETURN;
  END IF;

  WITH outcome AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(p_outcomes) AS o (
      id uuid, generation int, status text, result text, error_code text, error_message text, classes jsonb, retry jsonb, child_pid int,
      crashed boolean)
  ), held AS MATERIALIZED (
    SELECT t.id, t.started_at, t.retry_count, t.max_retries, t.options, t.good_until, t.cancel_requested_at FROM horsies_tasks t
    WHERE t.id = ANY (ARRAY(SELECT outcome.id FROM outcome)) AND t.claimed_by = p_worker AND t.status = 'RUNNING'
    FOR NO KEY UPDATE SKIP LOCKED
  ), verdict AS MATERIALIZED (  -- only tasks that can be retried or be poison
    SELECT o.id, a.due_at, a.poison
    FROM outcome o JOIN held h ON h.id = o.id CROSS JOIN LATERAL horsies_retry_decision(
      h.id, h.options, h.retry_count, h.max_retries, h.good_until, h.cancel_requested_at IS NOT NULL, o.error_code, o.classes, o.retry,
      o.crashed, p_max_crashes, v_now) AS a
    WHERE o.status = 'FAILED' AND (h.max_retries > 0 OR o.crashed)
  ), settled AS (
    UPDATE horsies_tasks t
    SET status = CASE WHEN v.due_at IS NULL THEN o.status ELSE 'PENDING' END,
        finished_at = CASE WHEN v.due_at IS NULL THEN v_now END,
        result = CASE WHEN v.poison THEN horsies_error_result('POISON', 'processes died again and again while they ran this task: ' || o.error_message)
                   WHEN v.due_at IS NULL THEN o.result::jsonb END,
        error_code = CASE WHEN v.poison THEN 'POISON' WHEN v.due_at IS NULL THEN o.error_code END,
        retry_count = t.retry_count + CASE WHEN v.due_at IS NULL THEN 0 ELSE 1 END,
        next_retry_at = v.due_at,
        enqueued_at = coalesce(v.due_at, t.enqueued_at),
        claimed_by = CASE WHEN v.due_at IS NULL THEN t.claimed_by END,
        claimed_at = CASE WHEN v.due_at IS NULL THEN t.claimed_at END,
        started_at = CASE WHEN v.due_at IS NULL THEN t.started_at END
    FROM outcome o LEFT JOIN verdict v ON v.id = o.id
    WHERE t.id = ANY (ARRAY(SELECT held.id FROM held)) AND o.id = t.id
      AND t.claim_generation = o.generation AND t.claimed_by = p_worker AND t.status = 'RUNNING'
    RETURNING t.id, t.claim_generation, t.queue_name, t.partition_key, t.next_retry_at, t.retry_count, t.max_retries, t.error_code, t.workflow_id
  ), attempt AS (
    INSERT INTO horsies_task_attempts (task_id, attempt, claim_generation, outcome, will_retry, started_at, finished_at,
                                       error_code, error_message, exception_class, traceback, worker_id, child_pid)
    SELECT s.id, h.retry_count + 1, s.claim_generation, CASE WHEN o.crashed THEN 'WORKER_FAILURE' ELSE o.status END,
           s.next_retry_at IS NOT NULL, coalesce(h.started_at, v_now), v_now, o.error_code, o.error_message,
           nullif(left(concat_ws('.', e.exception ->> 'module', e.exception ->> 'type'), 1000), ''),
           left(e.exception ->> 'traceback', 100000), p_worker, o.child_pid
    FROM settled s JOIN held h ON h.id = s.id JOIN outcome o ON o.id = s.id
    CROSS JOIN LATERAL (SELECT o.result::json -> 'err' -> 'exception' AS exception OFFSET 0) AS e
  )
  SELECT coalesce(array_agg(s.id), '{}'), coalesce(array_agg(s.queue_name::text), '{}'), coalesce(array_agg(s.partition_key), '{}'),
         coalesce(array_agg(s.id) FILTER (WHERE s.next_retry_at IS NULL), '{}'),
         jsonb_object_agg(s.id, CASE WHEN s.next_retry_at IS NULL THEN jsonb_build_object('code', s.error_code) ELSE jsonb_build_object(
           'retry', s.retry_count, 'of', s.max_retries, 'at', extract(epoch FROM s.next_retry_at)) END)
           FILTER (WHERE s.next_retry_at IS NOT NULL OR s.error_code = 'POISON'),
         array_agg(ARRAY[s.workflow_id, s.id]) FILTER (WHERE s.workflow_id IS NOT NULL AND s.next_retry_at IS NULL)
  INTO ids, queues, keys, finals, decided, in_runs FROM settled s;
  IF cardinality(finals) < cardinality(ids) THEN
    PERFORM pg_notify(p_channel || '_new', extract(epoch FROM min(t.next_retry_at)) || ' ' || t.queue_name)
    FROM horsies_tasks t WHERE t.id = ANY (ids) AND t.status = 'PENDING' GROUP BY t.queue_name;
  END IF;
END
$$;
