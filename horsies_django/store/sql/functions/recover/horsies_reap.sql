-- Rescues tasks of dead or missing workers, expires waiting tasks, and deletes the heartbeats of
-- workers that died more than a day ago. There is one reaper at a time, and it takes at most p_many
-- tasks of a kind. A worker without a heartbeat row is missing once its claim is older than the
-- threshold.
--
-- Running tasks are retried if their policy lists WORKER_CRASHED, else failed; tasks that ended
-- p_max_crashes processes fail as poison. Claims that had not started become pending again.
--
-- Tasks that cannot be settled together are settled one by one, then failed without an attempt; one
-- that cannot be failed either stays ('refused'). In a row that another program wrote, only the
-- columns count that contain which worker holds the task and that it has not finished.
--
-- Args: p_judge: also declare workers dead, for reapers of release 0.1; those of this release call
--   horsies_judge before.
-- Returns: kind: 'died' for a worker; 'failed', 'retried', 'returned', 'refused' or 'expired' for a
--   task and its attempt; options: NULL without metadata.
-- Moves: RUNNING -> FAILED, PENDING; CLAIMED -> PENDING; PENDING -> EXPIRED.
-- Locks: an advisory lock, without waiting; task rows, skipping locked ones; locks of caps, to
--   unpark.
-- Index: horsies_tasks_holding, horsies_tasks_deadline, horsies_heartbeats_parents, primary keys.
CREATE OR REPLACE FUNCTION horsies_reap(
  p_threshold interval, p_judge boolean, p_many int, p_max_crashes int, p_channel text
) RETURNS TABLE (
  kind text, id uuid, task_name text, attempt int, queue_name text, options text
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  c_gone CONSTANT text :=
    'the worker that ran the task is gone; the task may or may not have done its work';
  v_now timestamptz := clock_timestamp();
  v_ids uuid[];
  v_names text[];
  v_attempts int[];
  v_failed uuid[];
  v_started uuid[];
  v_dead record;
  v_outcome jsonb;
  v_refused uuid[] := '{}';
  v_options text[];
  v_queues text[];
  v_keys text[];
  v_expired uuid[];
  v_limits horsies_limits[];
  v_cluster int;
BEGIN
  IF NOT pg_try_advisory_xact_lock(
    hashtextextended('reaper', 'horsies_tasks'::regclass::oid::bigint)
  ) THEN
    RETURN;
  END IF;

  IF p_judge THEN
    RETURN QUERY
    SELECT 'died', j.id, NULL, NULL::int, NULL, NULL
    FROM horsies_judge(NULL, p_threshold, NULL) AS j (id);
  END IF;

  DELETE FROM horsies_heartbeats b
  USING horsies_heartbeats parent
  WHERE parent.id = b.worker_id
    AND parent.role = 'claimer'
    AND parent.died_at < v_now - interval '1 day';

  SELECT
    array_agg(o.id),
    array_agg(o.task_name),
    array_agg(o.attempt),
    array_agg(o.id) FILTER (WHERE o.status = 'RUNNING'),
    array_agg(CASE WHEN o.options ? 'metadata' THEN o.options::text END),
    array_agg(o.queue_name),
    array_agg(o.partition_key)
  INTO v_ids, v_names, v_attempts, v_started, v_options, v_queues, v_keys
  FROM (
    SELECT
      t.id, t.status, t.queue_name, t.partition_key, t.task_name,
      coalesce(t.attempts_before, 0) + t.retry_count + 1 AS attempt,
      t.options
    FROM horsies_tasks t
    WHERE t.claimed_by IS NOT NULL
      AND t.finished_at IS NULL
      AND horsies_is_orphaned(t.claimed_by, t.claimed_at, v_now - p_threshold)
    LIMIT p_many
    FOR NO KEY UPDATE SKIP LOCKED
  ) AS o;

  IF v_ids IS NOT NULL THEN
    FOR v_dead IN  -- settled in the name of each dead worker
      SELECT
        t.claimed_by AS worker,
        jsonb_agg(
          jsonb_build_object(
            'id', t.id,
            'generation', t.claim_generation,
            'status', 'FAILED',
            'error_code', 'WORKER_CRASHED',
            'error_message', c_gone,
            'result', horsies_error_result('WORKER_CRASHED', c_gone)::text,
            'crashed', true
          )
        ) AS outcomes
      FROM horsies_tasks t
      WHERE t.id = ANY (v_started)
      GROUP BY t.claimed_by
    LOOP
      BEGIN
        SELECT v_failed || s.finals
        INTO v_failed
        FROM horsies_settle(
          v_dead.worker, v_dead.outcomes, p_max_crashes, p_channel, NULL, NULL, NULL
        ) AS s;
      EXCEPTION
        WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded
          OR plpgsql_error
      THEN
        FOR v_outcome IN SELECT o.value FROM jsonb_array_elements(v_dead.outcomes) AS o LOOP
          BEGIN
            SELECT v_failed || s.finals
            INTO v_failed
            FROM horsies_settle(
              v_dead.worker, jsonb_build_array(v_outcome), p_max_crashes, p_channel,
              NULL, NULL, NULL
            ) AS s;
          EXCEPTION
            WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded
              OR plpgsql_error
          THEN
            BEGIN
              UPDATE horsies_tasks t
              SET
                status = 'FAILED',
                finished_at = v_now,
                error_code = 'WORKER_CRASHED',
                order_stop = horsies_order_stop(t),
                result = horsies_error_result(
                  'WORKER_CRASHED',
                  c_gone || '; its attempt could not be written: ' || SQLERRM
                )
              WHERE t.id = (v_outcome ->> 'id')::uuid
                AND t.claimed_by = v_dead.worker
                AND t.status = 'RUNNING';

              v_failed := v_failed || (v_outcome ->> 'id')::uuid;
              PERFORM horsies_notify_finished(p_channel, ARRAY[(v_outcome ->> 'id')::uuid]);
            EXCEPTION
              WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded
                OR plpgsql_error
            THEN
              v_refused := v_refused || (v_outcome ->> 'id')::uuid;
            END;
          END;
        END LOOP;
      END;
    END LOOP;

    UPDATE horsies_tasks t
    SET
      status = 'PENDING',
      claimed_by = NULL,
      claimed_at = NULL,
      claim_expires_at = NULL,
      started_at = NULL
    WHERE t.id = ANY (v_ids)
      AND t.claimed_by IS NOT NULL
      AND t.finished_at IS NULL
      AND t.status <> 'RUNNING';

    RETURN QUERY
    SELECT
      CASE
        WHEN r.id = ANY (v_refused) THEN 'refused'
        WHEN r.id = ANY (v_failed) THEN 'failed'
        WHEN r.id = ANY (v_started) THEN 'retried'
        ELSE 'returned'
      END,
      r.id, r.name, r.attempt, r.queue, r.options
    FROM unnest(v_ids, v_names, v_attempts, v_queues, v_options)
      AS r (id, name, attempt, queue, options);
  END IF;

  -- A task that is not parked may have been unparked for a permit, which the next one of its
  -- partition then gets.
  SELECT
    array_agg(l.id),
    v_queues || array_agg(l.queue_name) FILTER (WHERE l.unparked),
    v_keys || array_agg(l.partition_key) FILTER (WHERE l.unparked)
  INTO v_expired, v_queues, v_keys
  FROM (
    SELECT
      t.id, t.queue_name, t.partition_key,
      NOT t.parked AND t.partition_key IS NOT NULL AS unparked
    FROM horsies_tasks t
    WHERE t.claimed_by IS NULL AND t.finished_at IS NULL AND t.good_until <= v_now
    ORDER BY t.good_until
    LIMIT p_many
    FOR NO KEY UPDATE SKIP LOCKED
  ) AS l;

  IF v_expired IS NOT NULL THEN
    v_expired := horsies_expire(v_expired, v_now, p_channel);

    RETURN QUERY
    SELECT
      'expired', t.id, t.task_name::text,
      coalesce(t.attempts_before, 0) + t.retry_count + 1,
      t.queue_name::text, NULL
    FROM horsies_tasks t
    WHERE t.id = ANY (v_expired);
  END IF;

  IF v_queues IS NOT NULL THEN  -- all at once, so that locks are taken in their order
    SELECT
      array_agg(l) FILTER (
        WHERE l.partition_max_concurrency IS NOT NULL OR l.partition_local_limit IS NOT NULL
      ),
      min(l.max_concurrency) FILTER (WHERE l.queue_name = '*')
    INTO v_limits, v_cluster
    FROM horsies_limits l
    WHERE l.queue_name = ANY (v_queues || '*'::text);

    IF v_limits IS NOT NULL THEN
      PERFORM horsies_lock_caps(v_limits, v_cluster);
      PERFORM horsies_unpark(v_limits, v_queues, v_keys);
    END IF;

    PERFORM pg_notify(p_channel || '_new', '0 ' || q.queue)
    FROM (SELECT DISTINCT u.queue FROM unnest(v_queues) AS u (queue)) AS q;
  END IF;
END
$$;
