-- Writes the outcomes of running tasks with their attempts, fenced by worker and claim generation.
-- Outcomes that are FAILED or SNOOZED are decided before, under the lock of the task's row (a task
-- that is locked is missed): the task may wait for its time, of which the workers of its queue are
-- notified. A task keeps one attempt row of its snoozes, the last one. Processes that wait for
-- results are notified of tasks that are final.
-- With p_max_bytes, runs of workflows in which nothing else has to be decided go on here, see
-- horsies_plain_runs.
-- Nested loops are off: the planner cannot see that the CTEs have a row per outcome, and would
-- compare each with each. Members that few outcomes have stay in their JSON: each step that hands
-- rows on prepares and copies every column.
-- Args:
--   p_news: the only queue that may have due tasks, see horsies_wanted.
--   p_max_bytes: the most that the arguments of a task of a workflow may take.
--   p_now: replaces the clock in tests.
-- Returns:
--   queues, keys: the queues and partitions of what was written (which have a permit more now).
--   finals: the ids that are final.
--   report: NULL if there is nothing to say; it has by name: missed: ids that were not written,
--     which the caller looks up; in_runs: [run, id] of final ones that horsies_advance has to take
--     into account; decided: for the log, by id, {"retry": its number, "of": the most, "at": an
--     epoch} of tasks that wait for their time, {"code": its error code} where it differs from that
--     of the outcome, and {"stops": the partition that it stops}.
--   plain: nothing that was written, p_news or the cluster has a limit, p_news (unless NULL) has a
--     row, and the worker was not declared dead. A change of limits locks their table exclusively,
--     and a statement takes its snapshot after its locks, which the transaction keeps: so plain is
--     true for the rest of the transaction.
--   sent: the queue of each task that was sent for the runs, which the caller announces if it does
--     not claim it.
-- Moves: RUNNING -> COMPLETED, FAILED, CANCELLED, PENDING.
-- Locks: the task rows, skipping locked ones, which the next pass tries again; see
-- horsies_plain_runs.
CREATE OR REPLACE FUNCTION horsies_settle(
  p_worker uuid, p_outcomes jsonb, p_max_crashes int, p_channel text, p_news text, p_max_bytes int,
  p_now timestamptz,
  OUT queues text[], OUT keys text[], OUT finals uuid[], OUT report jsonb, OUT plain boolean,
  OUT sent text[]
) LANGUAGE plpgsql VOLATILE
SET enable_nestloop = off AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_ids uuid[];
  v_decided jsonb;
  v_in_runs jsonb;  -- as in the report
  v_plain uuid[] := '{}';  -- runs that go on here
  v_runs uuid[];  -- of them, one for each node in v_numbers whose task is final
  v_numbers bigint[];
  v_set text;
  v_waited boolean;  -- whether a process waits for results
  v_ordered boolean;  -- whether a task has a place in the order of its partition
BEGIN
  IF p_outcomes @> '[{"status": "FAILED"}]' OR p_outcomes @> '[{"status": "SNOOZED"}]' THEN
    SELECT jsonb_agg(
      outcome.value || coalesce(
        decided_task.decision,
        CASE WHEN outcome.value ->> 'status' IN ('FAILED', 'SNOOZED')
          THEN '{"generation": null}'
          ELSE '{}'
        END::jsonb))
    INTO p_outcomes
    FROM jsonb_array_elements(p_outcomes) AS outcome
    LEFT JOIN LATERAL (
      SELECT
        jsonb_build_object('order_stop', horsies_order_stop(task))
        || CASE outcome.value ->> 'status'
          WHEN 'SNOOZED' THEN horsies_snooze(task, outcome.value -> 'retry', v_now)
          ELSE (
            SELECT jsonb_build_object(
              'due_at', retry.due_at,
              'final_code', CASE WHEN retry.poison THEN 'POISON' END,
              'exception_class', nullif(
                left(
                  concat_ws('.', failure.exception ->> 'module', failure.exception ->> 'type'),
                  1000),
                ''),
              'traceback', left(failure.exception ->> 'traceback', 100000),
              'site', left(failure.exception ->> 'site', 1000),
              'site_line', substring(failure.exception ->> 'line' FROM '^\d{1,9}$')::int)
            FROM horsies_retry_decision(
              task.id, task.options, task.retry_count, task.max_retries, task.good_until,
              task.cancel_requested_at IS NOT NULL,
              outcome.value ->> 'error_code', outcome.value -> 'classes',
              nullif(outcome.value -> 'retry', 'null'), (outcome.value ->> 'crashed')::boolean,
              p_max_crashes, v_now
            ) AS retry
            CROSS JOIN LATERAL (
              SELECT (outcome.value ->> 'result')::json -> 'err' -> 'exception' AS exception
              OFFSET 0
            ) AS failure
          )
        END AS decision
      FROM horsies_tasks task
      WHERE outcome.value ->> 'status' IN ('FAILED', 'SNOOZED')
        AND task.id = (outcome.value ->> 'id')::uuid
        AND task.claimed_by = p_worker
        AND task.status = 'RUNNING'
        AND task.claim_generation = (outcome.value ->> 'generation')::int
      FOR NO KEY UPDATE OF task SKIP LOCKED
    ) AS decided_task ON true;

    IF p_outcomes @> '[{"status": "SNOOZED"}]' THEN
      DELETE FROM horsies_task_attempts a
      WHERE a.outcome = 'SNOOZED'
        AND a.task_id = ANY (ARRAY(
          SELECT (o.value ->> 'id')::uuid
          FROM jsonb_array_elements(p_outcomes) AS o
          WHERE o.value ->> 'status' = 'SNOOZED' AND o.value ->> 'due_at' IS NOT NULL
        ));
    END IF;
  END IF;

  IF p_max_bytes IS NOT NULL THEN
    SELECT horsies_plain_runs(
      array_agg(running_task.workflow_id),
      array_agg(running_task.node),
      array_agg(
        CASE WHEN outcome.status = 'COMPLETED' AND outcome.error_code IS NULL
          THEN running_task.id
        END),
      200)
    INTO v_plain
    FROM jsonb_to_recordset(p_outcomes)
      AS outcome (id uuid, generation int, status text, error_code text)
    CROSS JOIN LATERAL (
      SELECT task.id, task.workflow_id, task.node
      FROM horsies_tasks task
      WHERE task.id = outcome.id
        AND task.claim_generation = outcome.generation
        AND task.claimed_by = p_worker
        AND task.status = 'RUNNING'
      OFFSET 0
    ) AS running_task
    WHERE running_task.workflow_id IS NOT NULL;
  END IF;

  WITH outcome AS MATERIALIZED (
    SELECT
      (entry.value ->> 'id')::uuid AS id,
      (entry.value ->> 'generation')::int AS generation,
      entry.value AS told
    FROM jsonb_array_elements(p_outcomes) AS entry
  ),
  ended AS MATERIALIZED (
    SELECT
      task.id, task.claim_generation AS generation, task.queue_name, task.partition_key,
      task.started_at, task.workflow_id, task.ordered,
      least(coalesce(task.attempts_before, 0) + task.retry_count + 1, 32767) AS attempt,
      reported.told ->> 'status' AS status,
      reported.told ->> 'final_code' AS final_code,
      (reported.told ->> 'due_at')::timestamptz AS due_at,
      reported.told
    FROM horsies_tasks task
    JOIN outcome reported ON reported.id = task.id AND reported.generation = task.claim_generation
    WHERE task.id = ANY (ARRAY(SELECT outcome.id FROM outcome))
      AND task.claimed_by = p_worker
      AND task.status = 'RUNNING'
    FOR NO KEY UPDATE OF task SKIP LOCKED
  ),
  settled AS (
    UPDATE horsies_tasks task
    SET
      status = ended_task.status,
      finished_at = v_now,
      next_retry_at = NULL,
      advanced_at = CASE
        WHEN ended_task.workflow_id = ANY (v_plain) THEN v_now
        ELSE task.advanced_at
      END,
      error_code = coalesce(ended_task.final_code, ended_task.told ->> 'error_code'),
      order_stop = CASE ended_task.status WHEN 'FAILED' THEN ended_task.told ->> 'order_stop' END,
      result = CASE WHEN ended_task.final_code = 'POISON'
        THEN horsies_error_result(
          'POISON',
          'processes died again and again while they ran this task: '
            || (ended_task.told ->> 'error_message'))::text
        ELSE ended_task.told ->> 'result'
      END::horsies_json
    FROM ended ended_task
    WHERE task.id = ANY (ARRAY(SELECT ended.id FROM ended WHERE ended.due_at IS NULL))
      AND ended_task.id = task.id
      AND task.claim_generation = ended_task.generation
      AND task.claimed_by = p_worker
      AND task.status = 'RUNNING'
  ),
  attempt AS (
    INSERT INTO horsies_task_attempts (
      task_id, attempt, claim_generation,
      outcome,
      will_retry, started_at, finished_at,
      error_code, error_message,
      exception_class, traceback,
      site, site_line,
      worker_id, child_pid
    )
    SELECT
      ended_task.id, ended_task.attempt, ended_task.generation,
      CASE
        WHEN (ended_task.told ->> 'crashed')::boolean THEN 'WORKER_FAILURE'
        ELSE ended_task.status
      END,
      ended_task.due_at IS NOT NULL, coalesce(ended_task.started_at, v_now), v_now,
      ended_task.told ->> 'error_code', ended_task.told ->> 'error_message',
      ended_task.told ->> 'exception_class', ended_task.told ->> 'traceback',
      ended_task.told ->> 'site', (ended_task.told ->> 'site_line')::int,
      p_worker, (ended_task.told ->> 'child_pid')::int
    FROM ended ended_task
  )
  SELECT
    coalesce(array_agg(ended_task.id), '{}'),
    coalesce(array_agg(ended_task.queue_name::text), '{}'),
    coalesce(array_agg(ended_task.partition_key), '{}'),
    coalesce(array_agg(ended_task.id) FILTER (WHERE ended_task.due_at IS NULL), '{}'),
    jsonb_object_agg(ended_task.id, jsonb_build_object('code', ended_task.final_code))
      FILTER (WHERE ended_task.final_code IS NOT NULL),
    jsonb_agg(jsonb_build_array(ended_task.workflow_id, ended_task.id))
      FILTER (WHERE ended_task.workflow_id IS NOT NULL AND ended_task.due_at IS NULL),
    bool_or(ended_task.ordered),
    EXISTS (SELECT FROM horsies_waiters waiter WHERE waiter.expires_at > v_now),
    (
      SELECT
        coalesce(
          bool_and((
            limits.max_concurrency, limits.local_limit,
            limits.partition_max_concurrency, limits.partition_local_limit
          ) IS NULL),
          true)
        AND (p_news IS NULL OR coalesce(bool_or(limits.queue_name = p_news), false))
      FROM horsies_limits limits
      WHERE limits.queue_name = ANY (
        ARRAY(SELECT ended.queue_name::text FROM ended) || ARRAY[p_news, '*'])
    )
    AND NOT EXISTS (
      SELECT
      FROM horsies_heartbeats heartbeat
      WHERE heartbeat.id = p_worker AND heartbeat.died_at IS NOT NULL
    )
  INTO v_ids, queues, keys, finals, v_decided, v_in_runs, v_ordered, v_waited, plain
  FROM ended ended_task;

  IF v_waited THEN
    PERFORM horsies_notify_finished(
      p_channel,
      finals || CASE WHEN v_ordered
        THEN ARRAY(SELECT t.id FROM horsies_tasks t WHERE t.merged_into = ANY (finals))
      END);
  END IF;

  IF v_plain <> '{}' THEN
    SELECT array_agg(t.workflow_id), array_agg(t.node)
    INTO v_runs, v_numbers
    FROM (
      SELECT t.workflow_id, t.node FROM horsies_tasks t WHERE t.id = ANY (finals) OFFSET 0
    ) AS t
    WHERE t.workflow_id = ANY (v_plain);

    BEGIN
      v_set := set_config('horsies.quiet', 'on', true)
        || set_config('horsies.pass', '', true);  -- a stranger may have written the nodes
      sent := horsies_advance_plain(v_plain, v_runs, v_numbers, p_max_bytes, p_channel, p_now);
      v_set := set_config('horsies.quiet', '', true)
        || set_config('horsies.pass', 'on', true);
      v_in_runs := (
        SELECT jsonb_agg(r.value)
        FROM jsonb_array_elements(v_in_runs) AS r
        WHERE (r.value ->> 0)::uuid <> ALL (v_plain)
      );
    EXCEPTION
      WHEN SQLSTATE 'HW001' OR data_exception OR integrity_constraint_violation
        OR program_limit_exceeded OR plpgsql_error
      THEN
        -- horsies_advance determines which node cannot be sent
        UPDATE horsies_tasks t
        SET advanced_at = NULL
        WHERE t.id = ANY (finals) AND t.workflow_id = ANY (v_plain);
    END;
  END IF;

  IF v_ordered AND p_outcomes @> '[{"status": "FAILED"}]' THEN
    SELECT
      coalesce(
        v_decided || jsonb_object_agg(t.id, d.decision),
        jsonb_object_agg(t.id, d.decision),
        v_decided)
    INTO v_decided
    FROM horsies_tasks t
    CROSS JOIN LATERAL (
      SELECT
        coalesce(v_decided -> t.id::text, '{}')
          || jsonb_build_object('stops', t.partition_key) AS decision
    ) AS d
    WHERE t.id = ANY (finals)
      AND t.order_stop IS NOT DISTINCT FROM 'stop';  -- not by the index of all that stop one
  END IF;

  IF v_decided IS NOT NULL
    OR v_in_runs IS NOT NULL
    OR cardinality(finals) < jsonb_array_length(p_outcomes)
  THEN
    IF cardinality(finals) < cardinality(v_ids) THEN
      WITH retried AS (
        UPDATE horsies_tasks task
        SET
          status = 'PENDING',
          next_retry_at = outcome.due_at,
          enqueued_at = outcome.due_at,
          claimed_by = NULL,
          claimed_at = NULL,
          started_at = NULL,
          retry_count = least(task.retry_count + (outcome.status = 'FAILED')::int, 32766),
          snooze_count = CASE outcome.status
            WHEN 'SNOOZED' THEN least(coalesce(task.snooze_count, 0) + 1, 32766)
            ELSE task.snooze_count
          END
        FROM jsonb_to_recordset(p_outcomes)
          AS outcome (id uuid, generation int, status text, due_at timestamptz)
        WHERE task.id = ANY (v_ids)
          AND outcome.id = task.id
          AND outcome.due_at IS NOT NULL
          AND task.claim_generation = outcome.generation
          AND task.claimed_by = p_worker
          AND task.status = 'RUNNING'
        RETURNING task.id, task.queue_name, task.retry_count, task.max_retries, task.next_retry_at
      ),
      woken AS (
        SELECT pg_notify(
          p_channel || '_new',
          extract(epoch FROM min(retried_task.next_retry_at)) || ' ' || retried_task.queue_name)
        FROM retried retried_task
        GROUP BY retried_task.queue_name
      )
      SELECT
        coalesce(v_decided, '{}') || jsonb_object_agg(
          retried_task.id,
          jsonb_build_object(
            'retry', retried_task.retry_count,
            'of', retried_task.max_retries,
            'at', extract(epoch FROM retried_task.next_retry_at)))
      INTO v_decided
      FROM retried retried_task
      WHERE (SELECT count(*) FROM woken) >= 0;  -- every notification is sent
    END IF;

    report := jsonb_build_object(
      'decided', v_decided,
      'in_runs', v_in_runs,
      'missed', ARRAY(
        SELECT o.value -> 'id'
        FROM jsonb_array_elements(p_outcomes) AS o
        WHERE (o.value ->> 'id')::uuid <> ALL (v_ids)
      ));
  END IF;
END
$$;
