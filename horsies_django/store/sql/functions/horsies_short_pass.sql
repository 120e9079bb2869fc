-- The short pass: the pass where little is asked of it, as one statement. After an idle moment, when nothing is in the CPU's caches,
-- each statement of a pass costs as much as its work.
-- Settles tasks that did not fail, and claims from one queue, p_queue (NULL: from none), for a worker whose queues have no limits: there
-- is no permit to count or to offer, and no partition. Does what horsies_settle and horsies_claim do then, or nothing at all: 'unfit',
-- when there is a limit, when the queue has no row, or when the worker was declared dead. Limits are changed under an exclusive lock
-- of their table, and the statement has its snapshot after its locks: no pass is under way while a limit appears.
-- Its scan walks over what is due in the future, so it is for workers that were quick lately. Tasks past their good_until are left ('again'),
-- as are all that the pass can do besides: releases, starts, leases, the buffer, strangers, marks, when the next task becomes due.
-- Moves PENDING -> RUNNING and RUNNING -> COMPLETED, CANCELLED. Kinds: 'claimed', in order; 'missed' per outcome that did not land.
-- Locks: task rows, never waiting. Index: horsies_tasks_claim, then the primary key.
CREATE FUNCTION horsies_short_pass(p_worker uuid, p_channel text, p_outcomes jsonb, p_queues text[], p_queue text, p_sync int, p_async int)
RETURNS TABLE (kind text, id uuid, generation int, lane text, task_name text, kwargs text, attempt int, options text, queue_name text)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
BEGIN
  RETURN QUERY
  WITH fit AS MATERIALIZED (
    SELECT NOT EXISTS (SELECT FROM horsies_limits l WHERE l.queue_name = ANY (p_queues || '*'::text)
                       AND (l.max_concurrency IS NOT NULL OR l.local_limit IS NOT NULL
                            OR l.partition_max_concurrency IS NOT NULL OR l.partition_local_limit IS NOT NULL))
      AND (p_queue IS NULL OR EXISTS (SELECT FROM horsies_limits l WHERE l.queue_name = p_queue))
      AND NOT EXISTS (SELECT FROM horsies_heartbeats b WHERE b.id = p_worker AND b.died_at IS NOT NULL) AS ok
  ), outcome AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(p_outcomes) AS o (
      id uuid, generation int, status text, result jsonb, error_code text, error_message text, child_pid int)
  ), held AS MATERIALIZED (
    SELECT t.id FROM horsies_tasks t
    WHERE t.id = ANY (ARRAY(SELECT o.id FROM outcome o)) AND t.claimed_by = p_worker AND t.status = 'RUNNING' AND (SELECT fit.ok FROM fit)
    FOR NO KEY UPDATE SKIP LOCKED
  ), settled AS (
    UPDATE horsies_tasks t SET status = o.status, finished_at = v_now, result = o.result, error_code = o.error_code
    FROM outcome o
    WHERE t.id = ANY (ARRAY(SELECT held.id FROM held)) AND o.id = t.id
      AND t.claim_generation = o.generation AND t.claimed_by = p_worker AND t.status = 'RUNNING'
    RETURNING t.id, t.claim_generation, t.retry_count, t.started_at, o.status, o.error_code, o.error_message, o.child_pid
  ), attempt AS (
    INSERT INTO horsies_task_attempts (task_id, attempt, claim_generation, outcome, will_retry, started_at, finished_at,
                                       error_code, error_message, worker_id, child_pid)
    SELECT s.id, s.retry_count + 1, s.claim_generation, s.status, false, s.started_at, v_now, s.error_code, s.error_message, p_worker,
           s.child_pid
    FROM settled s
  ), told AS (  -- 200 ids of 36 characters stay below the 8,000 bytes that a payload may have
    SELECT pg_notify(p_channel || '_done', string_agg(n.id::text, ' '))
    FROM (SELECT s.id, (row_number() OVER () - 1) / 200 AS part FROM settled s
          WHERE EXISTS (SELECT FROM horsies_waiters w WHERE w.expires_at > v_now)) AS n
    GROUP BY n.part
  ), found AS MATERIALIZED (
    SELECT * FROM (
      SELECT t.id, t.good_until <= v_now AS late FROM horsies_tasks t
      WHERE t.queue_name = p_queue AND t.lane = 'sync' AND t.enqueued_at <= v_now
        AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked AND (SELECT fit.ok FROM fit)
      ORDER BY t.priority, t.enqueued_at, t.id LIMIT p_sync FOR NO KEY UPDATE SKIP LOCKED) AS sync
    UNION ALL
    SELECT * FROM (
      SELECT t.id, t.good_until <= v_now AS late FROM horsies_tasks t
      WHERE t.queue_name = p_queue AND t.lane = 'async' AND t.enqueued_at <= v_now
        AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked AND (SELECT fit.ok FROM fit)
      ORDER BY t.priority, t.enqueued_at, t.id LIMIT p_async FOR NO KEY UPDATE SKIP LOCKED) AS async_
  ), claimed AS (
    UPDATE horsies_tasks t
    SET status = 'RUNNING', claimed_by = p_worker, claimed_at = v_now, started_at = v_now, claim_generation = t.claim_generation % 2147483647 + 1
    WHERE t.id = ANY (ARRAY(SELECT f.id FROM found f WHERE f.late IS NOT TRUE)) AND t.status = 'PENDING'
    RETURNING t.priority, t.enqueued_at, t.id, t.claim_generation, t.lane, t.task_name, t.kwargs, t.retry_count, t.options, t.queue_name
  )
  SELECT c.*
  FROM (SELECT 'claimed', c.id, c.claim_generation, c.lane::text, c.task_name::text, c.kwargs::text, c.retry_count + 1, c.options::text,
          c.queue_name::text
        FROM claimed c ORDER BY c.priority, c.enqueued_at, c.id) AS c
  UNION ALL SELECT 'missed', o.id, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM outcome o WHERE o.id NOT IN (SELECT s.id FROM settled s)
  UNION ALL SELECT 'again', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL WHERE EXISTS (SELECT FROM found f WHERE f.late)
  UNION ALL SELECT 'unfit', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM fit WHERE NOT fit.ok
  UNION ALL SELECT 'told', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM told;
END
$$;
