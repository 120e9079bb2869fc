-- Collects the facts that decide now whether a task runs, for core/reasoning.py. It calls the
-- functions that the pass calls, and adds the tasks that hold the permits.
-- Args:
--   p_claimed: whether claims hold permits (hard mode).
--   p_threshold: workers without a heartbeat for this long are left out.
--   p_many: the largest number of holders and of former workers to return.
--   p_bound: the largest number of tasks before this one to count.
-- Returns: the text of a JSON object; NULL if there is no such task. Of its keys:
--   taken: the room that is missing under a very high cap, so it is the claim's own count.
--   order: the other task that comes first in the partition, see horsies_order_head.
-- Index: primary keys, horsies_tasks_holding, horsies_tasks_claim, horsies_tasks_parked,
-- horsies_tasks_order.
CREATE OR REPLACE FUNCTION horsies_explain(
  p_id uuid, p_claimed boolean, p_threshold interval, p_many int, p_bound int
) RETURNS text LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  c_vast CONSTANT int := 2000000000;
  v_now timestamptz;
  v_task horsies_tasks;
  v_name text;
  v_queue horsies_queues;
  v_limits horsies_limits;
  v_cap horsies_limits;
  v_vast horsies_limits;
  v_rooms int[];
  v_key text;
  v_first horsies_tasks;
  v_facts jsonb;
BEGIN
  SELECT t.* INTO v_task FROM horsies_tasks t WHERE t.id = p_id;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;

  v_now := clock_timestamp();
  -- a pause of its run postpones a retry
  v_task.enqueued_at := least(v_task.enqueued_at, v_task.next_retry_at);
  v_facts := jsonb_build_object(
    'now', v_now,
    'bound', p_bound,
    'task',
    to_jsonb(v_task)
      - ARRAY['kwargs', 'options', 'result', 'partition_key', 'partition_version']
      || jsonb_build_object(
        'snoozed', EXISTS (
          SELECT FROM horsies_task_attempts a
          WHERE a.task_id = p_id
            AND a.claim_generation = v_task.claim_generation
            AND a.outcome = 'SNOOZED'
        ),
        'wire', CASE jsonb_typeof(v_task.options -> 'wire')
          WHEN 'number' THEN v_task.options -> 'wire'
          ELSE '1'
        END
      )
  );
  IF v_task.finished_at IS NOT NULL THEN
    RETURN v_facts;
  END IF;

  IF v_task.claimed_by IS NOT NULL THEN
    v_facts := v_facts || jsonb_build_object('holder', (
      SELECT jsonb_build_object(
        'worker_id', v_task.claimed_by,
        'hostname', worker.hostname,
        'pid', worker.pid,
        'beat_at', heartbeat.sent_at,
        'died_at', heartbeat.died_at,
        'orphaned', horsies_is_orphaned(
          v_task.claimed_by, v_task.claimed_at, v_now - p_threshold
        ),
        'heard_at', (
          SELECT max(living_heartbeat.sent_at)
          FROM horsies_living_workers('*', p_threshold) AS living_worker (id)
          JOIN horsies_heartbeats living_heartbeat ON living_heartbeat.id = living_worker.id
        ),
        'child_pid', (
          SELECT child.pid
          FROM horsies_heartbeats child
          WHERE child.worker_id = v_task.claimed_by
            AND child.role = 'runner'
            AND child.holding ? p_id::text
          ORDER BY child.sent_at DESC
          LIMIT 1
        )
      )
      FROM (VALUES (v_task.claimed_by)) AS held (id)
      LEFT JOIN horsies_workers worker ON worker.id = held.id
      LEFT JOIN horsies_heartbeats heartbeat ON heartbeat.id = held.id
    ));

    IF v_task.status = 'RUNNING' THEN
      RETURN v_facts;
    END IF;
    p_claimed := false;  -- a start counts running tasks only
  END IF;

  IF v_task.workflow_id IS NOT NULL
    AND EXISTS (SELECT FROM horsies_forbidding(v_task.workflow_id, v_task.node))
  THEN
    v_facts := v_facts || jsonb_build_object('run', (
      SELECT jsonb_build_object(
        'workflow_id', w.id,
        'name', w.name,
        'status', w.status,
        'error_code', w.error_code
      )
      FROM horsies_workflows w
      WHERE w.id = v_task.workflow_id
    ));
  END IF;

  -- the queue last: the statements after the loop are about its limits
  FOREACH v_name IN ARRAY ARRAY['*', v_task.queue_name] LOOP
    v_limits := NULL;
    SELECT q.* INTO v_queue FROM horsies_queues q WHERE q.name = v_name;
    CONTINUE WHEN NOT FOUND;

    v_limits := horsies_effective_limits(v_queue);
    -- a claimed task already has a permit of the cluster
    CONTINUE WHEN v_name = '*'
      AND (v_task.claimed_by IS NOT NULL OR v_limits.max_concurrency IS NULL);

    v_cap := v_limits;
    v_cap.local_limit := NULL;
    v_vast := v_cap;
    v_vast.max_concurrency := c_vast;
    v_rooms := (
      horsies_remaining_capacity(
        ARRAY[v_cap, v_vast], NULL, p_claimed OR v_name = '*', v_now, NULL
      )
    ).rooms;
    v_facts := v_facts || jsonb_build_object(
      CASE v_name WHEN '*' THEN 'cluster' ELSE 'queue' END,
      to_jsonb(v_queue) || to_jsonb(v_limits) || jsonb_build_object(
        'room', v_rooms[1],
        'taken', c_vast - v_rooms[2],
        'holders', CASE
          WHEN v_rooms[1] <= 0 THEN horsies_permit_holders(
            v_limits, NULL, p_claimed OR v_name = '*', v_now, p_many
          )
        END
      )
    );
  END LOOP;

  IF v_limits.partition_max_concurrency IS NOT NULL OR v_limits.partition_local_limit IS NOT NULL
  THEN
    v_key := horsies_partition_key(
      v_limits.partition_by_args, v_limits.partition_by_task,
      v_task.kwargs, v_task.task_name, v_task.codec
    );
  END IF;

  IF v_key IS NOT NULL THEN
    v_facts := v_facts || jsonb_build_object('partition', (
      SELECT jsonb_build_object(
        'partition', r.key,
        'room', r.everyone,
        'taken', r.held,
        'holders', horsies_permit_holders(v_limits, v_key, p_claimed, v_now, p_many)
      )
      FROM horsies_partition_rooms(v_limits, ARRAY[v_key], NULL, p_claimed, v_now) AS r
    ));
  END IF;

  IF v_key IS NOT NULL AND v_limits.partition_policy IS NOT NULL THEN
    SELECT t.*
    INTO v_first
    FROM horsies_order_head(v_limits, v_key) AS h
    JOIN horsies_tasks t ON t.id = h.id;

    IF v_first.id <> p_id THEN
      v_facts := v_facts || jsonb_build_object('order', jsonb_build_object(
        'partition', v_key,
        'task_id', v_first.id,
        'task_name', v_first.task_name,
        'status', v_first.status,
        'order_stop', v_first.order_stop,
        'enqueued_at', v_first.enqueued_at,
        'started_at', v_first.started_at,
        'finished_at', v_first.finished_at
      ));
    END IF;
  END IF;

  v_facts := v_facts || jsonb_build_object(
    'workers', horsies_eligible_workers(v_task, v_limits, v_key, p_claimed, v_now, p_threshold),
    'former', (
      SELECT coalesce(jsonb_agg(to_jsonb(f) ORDER BY f.seen_at DESC), '[]')
      FROM (
        SELECT w.id AS worker_id, w.hostname, w.pid, w.seen_at, w.stopping_at, w.stopped_at
        FROM horsies_workers w
        WHERE w.queues ? v_task.queue_name
        ORDER BY w.seen_at DESC
        LIMIT p_many
      ) AS f
    )
  );

  IF v_task.claimed_by IS NULL AND v_task.enqueued_at <= v_now AND v_queue.name IS NOT NULL THEN
    v_facts := v_facts || jsonb_build_object(
      'before', horsies_tasks_before(v_task, v_now, p_bound + 1)
    );
  END IF;
  RETURN v_facts;
END
$$;
