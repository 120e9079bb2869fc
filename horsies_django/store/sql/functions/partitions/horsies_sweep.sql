-- Brings the waiting tasks of a queue in line with its limits, p_many at a time: after a change,
-- and periodically in case a wakeup was lost. It has three stages:
-- - First, parked tasks with the key of another rule get a new key and are unparked; so are all
--   parked tasks of a queue without limits per partition. The workers are woken to scan everything.
-- - "heads": the first tasks of partitions with room are unparked.
-- - "keys": the other waiting tasks get the key of the rule in force.
-- After a change of its rule ("rule") a queue with a policy for partitions starts nothing until all
-- tasks have the new key, including tasks that were locked meanwhile ("left").
-- horsies_queues.sweep stores how far the sweep has come; it is NULL when the sweep is done.
-- Returns: whether there is more to do now. It is false, too, if the row of the queue is locked, or
-- if a sweep after a change of the rule has to begin again because tasks were left.
-- Locks: the advisory lock of the queue; its row and task rows, skipping locked ones.
-- Index: horsies_tasks_parked, horsies_tasks_claim, horsies_tasks_stopped.
CREATE OR REPLACE FUNCTION horsies_sweep(p_queue text, p_many int, p_channel text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_sweep jsonb;
  v_limits horsies_limits;
  v_cluster int;
  v_now timestamptz;
  v_count int;
  v_keys text[] := '{}';
  v_key text;
  v_last record;
  v_rule boolean;
  v_left boolean;
  v_more boolean := false;
BEGIN
  -- before the row, as a change of limits does
  SELECT l.* INTO v_limits FROM horsies_limits l WHERE l.queue_name = p_queue;
  SELECT l.max_concurrency INTO v_cluster FROM horsies_limits l WHERE l.queue_name = '*';

  SELECT q.sweep
  INTO v_sweep
  FROM horsies_queues q
  WHERE q.name = p_queue AND q.sweep IS NOT NULL
  FOR NO KEY UPDATE SKIP LOCKED;

  IF NOT FOUND THEN
    RETURN false;
  END IF;

  PERFORM horsies_lock_caps(ARRAY[v_limits], v_cluster);
  v_now := clock_timestamp();
  v_rule := v_sweep ? 'rule';
  v_left := coalesce((v_sweep -> 'left')::boolean, false);

  IF v_sweep ->> 'stage' IS NULL THEN
    UPDATE horsies_tasks t
    SET
      parked = false,
      partition_version = v_limits.partition_version,
      ordered = CASE WHEN v_limits.partition_policy IS NOT NULL THEN true END,
      partition_key = horsies_partition_key(
        v_limits.partition_by_args, v_limits.partition_by_task, t.kwargs, t.task_name, t.codec
      )
    WHERE t.parked AND t.id = ANY (
      ARRAY(
        SELECT p.id
        FROM horsies_tasks p
        WHERE p.queue_name = p_queue
          AND p.claimed_by IS NULL
          AND p.finished_at IS NULL
          AND p.parked
          AND (
            p.partition_version IS DISTINCT FROM v_limits.partition_version
            OR (
              v_limits.partition_max_concurrency IS NULL
              AND v_limits.partition_local_limit IS NULL
            )
          )
        LIMIT p_many
        FOR NO KEY UPDATE SKIP LOCKED
      )
    );
    GET DIAGNOSTICS v_count = ROW_COUNT;

    IF v_count > 0 THEN
      PERFORM pg_notify(p_channel || '_new', '0 ' || p_queue);
    END IF;
    v_sweep := CASE WHEN v_count < p_many THEN '{"stage": "heads"}' ELSE '{}' END;

  ELSIF v_sweep ->> 'stage' = 'heads' THEN
    v_key := v_sweep ->> 'after';
    IF v_key IS NULL THEN  -- partitions whose tasks are to be cancelled: none may be parked
      SELECT horsies_unpark(ARRAY[v_limits], array_agg(p_queue), array_agg(t.partition_key))
      INTO v_count
      FROM horsies_tasks t
      WHERE t.queue_name = p_queue AND t.order_stop = 'cancel'
      HAVING count(*) > 0;

      v_more := coalesce(v_count > 0, false);  -- there may be others
    END IF;

    WHILE NOT v_more LOOP  -- one partition with parked tasks after the other
      SELECT p.partition_key
      INTO v_key
      FROM horsies_tasks p
      WHERE p.queue_name = p_queue
        AND p.partition_key > coalesce(v_key, '')
        AND p.claimed_by IS NULL
        AND p.finished_at IS NULL
        AND p.parked
      ORDER BY p.partition_key
      LIMIT 1;

      EXIT WHEN NOT FOUND;
      v_keys := v_keys || v_key;
      EXIT WHEN cardinality(v_keys) >= p_many;
    END LOOP;

    IF v_keys <> '{}' THEN
      PERFORM horsies_unpark(
        ARRAY[v_limits], array_agg(p_queue), array_agg(r.key), array_agg(r.everyone)
      )
      FROM horsies_partition_rooms(v_limits, v_keys, NULL, true, v_now) AS r
      WHERE r.everyone > 0;
    END IF;

    v_sweep := CASE
      WHEN v_more THEN '{"stage": "heads"}'
      WHEN cardinality(v_keys) < p_many THEN '{"stage": "keys"}'
      ELSE jsonb_build_object('stage', 'heads', 'after', v_key)
    END;

  ELSE
    WITH batch AS MATERIALIZED (
      SELECT task.id, task.lane, task.priority, task.enqueued_at, task.partition_version
      FROM horsies_tasks task
      WHERE task.queue_name = p_queue
        AND task.claimed_by IS NULL
        AND task.finished_at IS NULL
        AND NOT task.parked
        AND (task.lane, task.priority, task.enqueued_at, task.id) > (
          coalesce(v_sweep ->> 'lane', ''),
          coalesce((v_sweep ->> 'priority')::smallint, 0::smallint),
          coalesce((v_sweep ->> 'enqueued_at')::timestamptz, '-infinity'),
          coalesce(v_sweep ->> 'id', '00000000-0000-0000-0000-000000000000')::uuid
        )
      ORDER BY task.lane, task.priority, task.enqueued_at, task.id
      LIMIT p_many
    ),
    keyed AS (
      UPDATE horsies_tasks task
      SET
        partition_version = v_limits.partition_version,
        ordered = CASE WHEN v_limits.partition_policy IS NOT NULL THEN true END,
        partition_key = horsies_partition_key(
          v_limits.partition_by_args, v_limits.partition_by_task,
          task.kwargs, task.task_name, task.codec
        )
      WHERE task.id = ANY (
        ARRAY(
          SELECT waiting_task.id
          FROM horsies_tasks waiting_task
          WHERE waiting_task.id = ANY (
              ARRAY(
                SELECT batch_task.id
                FROM batch batch_task
                WHERE batch_task.partition_version IS DISTINCT FROM v_limits.partition_version
              )
            )
            AND waiting_task.claimed_by IS NULL
            AND waiting_task.finished_at IS NULL
          FOR NO KEY UPDATE SKIP LOCKED
        )
      )
      RETURNING 1
    )
    SELECT
      count(*) OVER () AS many,
      count(*) FILTER (
        WHERE batch_task.partition_version IS DISTINCT FROM v_limits.partition_version
      ) OVER () > (SELECT count(*) FROM keyed) AS skipped,
      batch_task.*
    INTO v_last
    FROM batch batch_task
    ORDER BY
      batch_task.lane DESC,
      batch_task.priority DESC,
      batch_task.enqueued_at DESC,
      batch_task.id DESC
    LIMIT 1;

    v_left := v_left OR coalesce(v_last.skipped, false);
    v_sweep := CASE
      WHEN coalesce(v_last.many, 0) < p_many THEN NULL
      ELSE jsonb_build_object(
        'stage', 'keys',
        'lane', v_last.lane,
        'priority', v_last.priority,
        'enqueued_at', v_last.enqueued_at,
        'id', v_last.id
      )
    END;
  END IF;

  IF v_rule AND v_sweep IS NOT NULL THEN
    v_sweep := v_sweep || jsonb_build_object('rule', true, 'left', v_left);
  ELSIF v_rule THEN
    IF v_left OR EXISTS (
      SELECT FROM horsies_tasks t
      WHERE t.queue_name = p_queue
        AND t.claimed_by IS NULL
        AND t.finished_at IS NULL
        AND t.parked
        AND t.partition_version IS DISTINCT FROM v_limits.partition_version
    ) THEN
      UPDATE horsies_queues q SET sweep = '{"rule": true}' WHERE q.name = p_queue;
      RETURN false;
    END IF;

    PERFORM pg_notify(p_channel || '_new', '0 ' || p_queue);
  END IF;

  UPDATE horsies_queues q SET sweep = v_sweep WHERE q.name = p_queue;
  RETURN v_sweep IS NOT NULL;
END
$$;
