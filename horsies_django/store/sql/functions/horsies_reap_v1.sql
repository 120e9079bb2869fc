-- The reaper: declare workers dead whose parent has not beaten for p_threshold, and rescue what dead or missing workers hold; expire
-- tasks past their good_until that nobody meets. One reaper at a time in the cluster, some rows at a time; the rest comes with the next tick.
-- A worker without any heartbeat counts as missing once its claim is older than the threshold: it beats before it claims.
-- p_judge: whether the caller may declare deaths; a server that has just started has heard nobody for a while.
-- Moves RUNNING -> FAILED (WORKER_CRASHED: the task may or may not have run); claims that did not start go back, and late ones expire.
-- Kinds: 'died' with the worker, 'failed', 'returned', 'expired' with the task; at most p_many of each.
-- Locks: an advisory lock, never waiting; task rows, never waiting; those of caps, for unparking. Index: horsies_tasks_holding,
-- horsies_tasks_deadline, primary keys.
CREATE FUNCTION horsies_reap_v1(p_threshold interval, p_judge boolean, p_many int, p_channel text)
RETURNS TABLE (kind text, id uuid) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_ids uuid[];
  v_failed uuid[];
  v_queues text[];
  v_keys text[];
  v_expired uuid[];
BEGIN
  IF NOT pg_try_advisory_xact_lock(hashtextextended('reaper', 'horsies_tasks'::regclass::oid::bigint)) THEN
    RETURN;
  END IF;
  IF p_judge AND pg_postmaster_start_time() < v_now - p_threshold THEN
    RETURN QUERY
    UPDATE horsies_heartbeats b SET died_at = v_now
    WHERE b.role = 'claimer' AND b.died_at IS NULL AND b.sent_at < v_now - p_threshold RETURNING 'died', b.id;
  END IF;

  DELETE FROM horsies_heartbeats b USING horsies_heartbeats parent
  WHERE parent.id = b.worker_id AND parent.died_at < v_now - interval '1 day';

  SELECT array_agg(o.id), array_agg(o.id) FILTER (WHERE o.status = 'RUNNING'), array_agg(o.queue_name), array_agg(o.partition_key)
  INTO v_ids, v_failed, v_queues, v_keys
  FROM (
    SELECT t.id, t.status, t.queue_name, t.partition_key FROM horsies_tasks t
    WHERE t.claimed_by IS NOT NULL AND t.finished_at IS NULL AND horsies_orphaned_v1(t.claimed_by, t.claimed_at, v_now - p_threshold)
    LIMIT p_many FOR NO KEY UPDATE SKIP LOCKED
  ) AS o;
  IF v_ids IS NOT NULL THEN
    INSERT INTO horsies_task_attempts (task_id, attempt, claim_generation, outcome, started_at, finished_at, error_code, error_message, worker_id)
    SELECT t.id, t.retry_count + 1, t.claim_generation, 'WORKER_FAILURE', t.started_at, v_now, 'WORKER_CRASHED',
           'the worker that ran the task is gone; the task may or may not have done its work', t.claimed_by
    FROM horsies_tasks t WHERE t.id = ANY (v_failed);
    UPDATE horsies_tasks t
    SET status = 'FAILED', finished_at = v_now, error_code = 'WORKER_CRASHED',
        result = jsonb_build_object('err', jsonb_build_object('error_code', 'WORKER_CRASHED', 'data', NULL, 'exception', NULL,
          'message', 'the worker that ran the task is gone; the task may or may not have done its work'))
    WHERE t.id = ANY (v_failed) AND t.status = 'RUNNING';
    UPDATE horsies_tasks t
    SET status = 'PENDING', claimed_by = NULL, claimed_at = NULL, claim_expires_at = NULL
    WHERE t.id = ANY (v_ids) AND t.status = 'CLAIMED';
    RETURN QUERY SELECT CASE WHEN r.id = ANY (v_failed) THEN 'failed' ELSE 'returned' END, r.id FROM unnest(v_ids) AS r (id);
  END IF;

  -- one that was not parked may have been unparked for a permit, which then waits for the next of its partition
  SELECT array_agg(l.id), v_queues || array_agg(l.queue_name) FILTER (WHERE l.unparked),
         v_keys || array_agg(l.partition_key) FILTER (WHERE l.unparked)
  INTO v_expired, v_queues, v_keys
  FROM (
    SELECT t.id, t.queue_name, t.partition_key, NOT t.parked AND t.partition_key IS NOT NULL AS unparked FROM horsies_tasks t
    WHERE t.claimed_by IS NULL AND t.finished_at IS NULL AND t.good_until <= v_now
    ORDER BY t.good_until LIMIT p_many FOR NO KEY UPDATE SKIP LOCKED
  ) AS l;
  IF v_expired IS NOT NULL THEN
    v_expired := horsies_expire_v1(v_expired, v_now);
    RETURN QUERY SELECT 'expired', e.id FROM unnest(v_expired) AS e (id);
  END IF;
  IF v_queues IS NOT NULL THEN  -- once, for all: the locks are taken in their order
    PERFORM horsies_freed_v1(p_channel, v_queues, v_keys);
  END IF;
  IF EXISTS (SELECT FROM horsies_waiters w WHERE w.expires_at > v_now) THEN
    PERFORM pg_notify(p_channel || '_done', string_agg(d.id::text, ' '))
    FROM unnest(v_failed || v_expired) WITH ORDINALITY AS d (id, place) GROUP BY (d.place - 1) / 200;
  END IF;
END
$$;
