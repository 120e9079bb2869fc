-- The short pass: settles tasks that did not fail and claims from one queue (p_queue; NULL: none), in one statement for each. See
-- docs/explanation/the-pass.md.
-- It does what horsies_settle and horsies_claim would do, or nothing: fit is false if p_queue, the queue of a settled task or the cluster has
-- a limit, if p_queue has no row, or if the worker was declared dead. A change of limits locks their table exclusively, and a statement takes its
-- snapshot after its locks, which the transaction keeps: no limit is missed, and none appears between the two statements.
-- Tasks past their good_until are left to a whole pass (again). Tasks that are due in the future, or that their run does not let start, are
-- walked over. missed: outcomes that were not written. in_runs: see horsies_settle.
-- Moves PENDING -> RUNNING and RUNNING -> COMPLETED, CANCELLED.
-- Locks: task rows, skipping locked ones. Index: horsies_tasks_claim, then the primary key.
CREATE FUNCTION horsies_short_pass(p_worker uuid, p_channel text, p_outcomes jsonb, p_queue text, p_sync int, p_async int,
                                   OUT fit boolean, OUT again boolean, OUT missed uuid[], OUT ids uuid[], OUT generations int[],
                                   OUT lanes text[], OUT task_names text[], OUT kwargs text[], OUT attempts int[], OUT options text[],
                                   OUT queue_names text[], OUT in_runs uuid[])
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
BEGIN
  IF p_outcomes IS NOT NULL THEN
    WITH outcome AS MATERIALIZED (
      SELECT * FROM jsonb_to_recordset(p_outcomes) AS o (
        id uuid, generation int, status text, result text, error_code text, error_message text, child_pid int)
    ), held AS MATERIALIZED (
      SELECT t.id, t.queue_name FROM horsies_tasks t
      WHERE t.id = ANY (ARRAY(SELECT o.id FROM outcome o)) AND t.claimed_by = p_worker AND t.status = 'RUNNING'
      FOR NO KEY UPDATE SKIP LOCKED
    ), fitting AS MATERIALIZED (
      SELECT NOT EXISTS (SELECT FROM horsies_limits l
                         WHERE l.queue_name = ANY (ARRAY(SELECT held.queue_name::text FROM held) || ARRAY[p_queue, '*'])
                           AND (l.max_concurrency IS NOT NULL OR l.local_limit IS NOT NULL
                                OR l.partition_max_concurrency IS NOT NULL OR l.partition_local_limit IS NOT NULL))
        AND (p_queue IS NULL OR EXISTS (SELECT FROM horsies_limits l WHERE l.queue_name = p_queue))
        AND NOT EXISTS (SELECT FROM horsies_heartbeats b WHERE b.id = p_worker AND b.died_at IS NOT NULL) AS ok
    ), settled AS (
      UPDATE horsies_tasks t SET status = o.status, finished_at = v_now, result = o.result::horsies_json, error_code = o.error_code
      FROM outcome o
      WHERE t.id = ANY (ARRAY(SELECT held.id FROM held)) AND o.id = t.id AND (SELECT fitting.ok FROM fitting)
        AND t.claim_generation = o.generation AND t.claimed_by = p_worker AND t.status = 'RUNNING'
      RETURNING t.id, t.claim_generation, t.retry_count, t.started_at, t.workflow_id, o.status, o.error_code, o.error_message, o.child_pid
    ), attempt AS (
      INSERT INTO horsies_task_attempts (task_id, attempt, claim_generation, outcome, will_retry, started_at, finished_at,
                                         error_code, error_message, worker_id, child_pid)
      SELECT s.id, s.retry_count + 1, s.claim_generation, s.status, false, s.started_at, v_now, s.error_code, s.error_message, p_worker,
             s.child_pid
      FROM settled s
    ), told AS (  -- 200 ids of 36 characters fit into the 8,000 bytes of a payload
      SELECT pg_notify(p_channel || '_done', string_agg(n.id::text, ' '))
      FROM (SELECT s.id, (row_number() OVER () - 1) / 200 AS part FROM settled s
            WHERE EXISTS (SELECT FROM horsies_waiters w WHERE w.expires_at > v_now)) AS n
      GROUP BY n.part
    )
    SELECT fitting.ok,
           (SELECT array_agg(o.id) FROM outcome o WHERE o.id NOT IN (SELECT s.id FROM settled s)),
           (SELECT array_agg(ARRAY[s.workflow_id, s.id]) FROM settled s WHERE s.workflow_id IS NOT NULL)
    INTO fit, missed, in_runs
    FROM fitting, (SELECT count(*) FROM told) AS every_notification_is_sent;
  ELSE
    fit := NOT EXISTS (SELECT FROM horsies_limits l
                       WHERE l.queue_name IN (p_queue, '*')
                         AND (l.max_concurrency IS NOT NULL OR l.local_limit IS NOT NULL
                              OR l.partition_max_concurrency IS NOT NULL OR l.partition_local_limit IS NOT NULL))
      AND (p_queue IS NULL OR EXISTS (SELECT FROM horsies_limits l WHERE l.queue_name = p_queue))
      AND NOT EXISTS (SELECT FROM horsies_heartbeats b WHERE b.id = p_worker AND b.died_at IS NOT NULL);
  END IF;
  IF p_queue IS NULL OR NOT fit THEN RETURN; END IF;
  WITH found AS MATERIALIZED (
    SELECT f.id, f.late FROM (VALUES ('sync', p_sync), ('async', p_async)) AS l (lane, slots) CROSS JOIN LATERAL (
      SELECT t.id, t.good_until <= v_now AS late FROM horsies_tasks t
      WHERE t.queue_name = p_queue AND t.lane = l.lane AND t.enqueued_at <= v_now
        AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
        AND (t.workflow_id IS NULL OR NOT EXISTS (SELECT FROM horsies_forbidding(t.workflow_id, t.node)))
      ORDER BY t.priority, t.enqueued_at, t.id LIMIT l.slots FOR NO KEY UPDATE SKIP LOCKED) AS f
    WHERE l.slots > 0
  ), claimed AS (
    UPDATE horsies_tasks t
    SET status = 'RUNNING', claimed_by = p_worker, claimed_at = v_now, started_at = v_now, claim_generation = t.claim_generation % 2147483647 + 1
    WHERE t.id = ANY (ARRAY(SELECT f.id FROM found f WHERE f.late IS NOT TRUE)) AND t.status = 'PENDING'
    RETURNING t.priority, t.enqueued_at, t.id, t.claim_generation, t.lane, t.task_name, t.kwargs, t.retry_count, t.options, t.queue_name
  )
  SELECT EXISTS (SELECT FROM found f WHERE f.late),
         c.ids, c.generations, c.lanes, c.task_names, c.kwargs, c.attempts, c.options, c.queue_names
  INTO again, ids, generations, lanes, task_names, kwargs, attempts, options, queue_names
  FROM (
    SELECT array_agg(c.id) AS ids, array_agg(c.claim_generation) AS generations, array_agg(c.lane::text) AS lanes,
           array_agg(c.task_name::text) AS task_names, array_agg(c.kwargs::text) AS kwargs, array_agg(c.retry_count + 1) AS attempts,
           array_agg(c.options::text) AS options, array_agg(c.queue_name::text) AS queue_names
    FROM (SELECT * FROM claimed ORDER BY claimed.priority, claimed.enqueued_at, claimed.id) AS c
  ) AS c;
END
$$;
