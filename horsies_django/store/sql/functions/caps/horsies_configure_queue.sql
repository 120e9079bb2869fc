-- Changes columns of a queue and updates everything that depends on them, in the same transaction:
-- the limits in force, and the partitions of tasks in flight and of tasks that stop a partition.
-- Writes the audit and wakes the workers. A redacted task has no arguments any more, and does not
-- stop a partition by another rule.
-- Args:
--   p_changes: the new values, by the names of their columns.
--   p_create: whether to add the queue if it is missing.
-- Returns:
--   changed: the names of the columns that changed; an empty array if all had these values already
--     (then nothing is locked or written); NULL if there is no such queue.
--   lost: as horsies_note returns it.
-- Locks: horsies_limits exclusively: it waits for passes in progress, delays the next ones, and
-- gives up after the lock timeout. The row of the queue. The rows of tasks in flight, skipping
-- locked ones: these keep their old key, and counts use the new rule for them. The rows of tasks
-- that stop a partition, within the lock timeout.
-- Index: primary keys, horsies_tasks_claim, horsies_tasks_parked, horsies_tasks_holding,
-- horsies_tasks_stopped.
CREATE OR REPLACE FUNCTION horsies_configure_queue(
  p_name text, p_changes jsonb, p_create boolean, p_action text, p_actor text, p_reason text,
  p_channel text, OUT changed text[], OUT lost text
) LANGUAGE plpgsql VOLATILE
SET lock_timeout = '500ms' SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
  v_old horsies_queues;
  v_new horsies_queues;
  v_rule boolean;
  v_waits boolean := false;
BEGIN
  SELECT q.* INTO v_old FROM horsies_queues q WHERE q.name = p_name;
  IF v_old.name IS NULL AND NOT p_create THEN
    RETURN;
  END IF;

  v_new := jsonb_populate_record(v_old, p_changes);
  IF v_old.name IS NOT NULL AND v_new IS NOT DISTINCT FROM v_old THEN
    changed := '{}';
    RETURN;
  END IF;

  LOCK TABLE horsies_limits IN ACCESS EXCLUSIVE MODE;
  INSERT INTO horsies_queues (name) VALUES (p_name) ON CONFLICT DO NOTHING;
  SELECT q.* INTO v_old FROM horsies_queues q WHERE q.name = p_name FOR UPDATE;

  v_new := jsonb_populate_record(v_old, p_changes);
  v_rule := (
    v_new.partition_by_args,
    v_new.partition_by_task,
    v_new.partition_policy IS NULL,
    v_new.partition_policy = 'coalesce'
  ) IS DISTINCT FROM (
    v_old.partition_by_args,
    v_old.partition_by_task,
    v_old.partition_policy IS NULL,
    v_old.partition_policy = 'coalesce'
  );
  IF v_rule THEN  -- other changes do without the table of tasks, which may be locked
    v_waits :=  -- two statements of which each has an index
      EXISTS (
        SELECT FROM horsies_tasks t
        WHERE t.queue_name = p_name
          AND t.claimed_by IS NULL
          AND t.finished_at IS NULL
          AND NOT t.parked
      )
      OR EXISTS (
        SELECT FROM horsies_tasks t
        WHERE t.queue_name = p_name
          AND t.claimed_by IS NULL
          AND t.finished_at IS NULL
          AND t.parked
      );
  END IF;
  v_new.partition_version := v_old.partition_version + v_rule::int;

  SELECT coalesce(array_agg(c.key ORDER BY c.key), '{}')
  INTO changed
  FROM jsonb_object_keys(p_changes) AS c (key)
  WHERE to_jsonb(v_new) -> c.key IS DISTINCT FROM to_jsonb(v_old) -> c.key;

  IF changed <> '{}' THEN
    EXECUTE format(
      'UPDATE horsies_queues SET (%1$s) = (SELECT %1$s FROM (SELECT ($1).*) n) WHERE name = $2',
      (SELECT string_agg(quote_ident(c.name), ', ') FROM unnest(changed) AS c (name))
    )
    USING v_new, p_name;
  END IF;

  UPDATE horsies_queues q
  SET
    partition_version = v_new.partition_version,
    sweep = CASE
      WHEN v_new.partition_policy IS NOT NULL AND (v_waits OR q.sweep ? 'rule')
        THEN '{"rule": true}'
      ELSE '{}'
    END::jsonb,
    updated_at = clock_timestamp()
  WHERE q.name = p_name;

  DELETE FROM horsies_limits l WHERE l.queue_name = p_name;

  INSERT INTO horsies_limits
  SELECT effective.*
  FROM horsies_queues queue
  CROSS JOIN LATERAL horsies_effective_limits(queue) AS effective
  WHERE queue.name = p_name;

  IF v_rule THEN
    UPDATE horsies_tasks task
    SET
      partition_key = horsies_partition_key(
        v_new.partition_by_args, v_new.partition_by_task, task.kwargs, task.task_name, task.codec
      ),
      partition_version = v_new.partition_version,
      ordered = CASE WHEN v_new.partition_policy IS NOT NULL THEN true END,
      order_stop = CASE
        WHEN v_new.partition_policy <> 'coalesce' AND task.redacted_at IS NULL THEN task.order_stop
      END
    WHERE task.id = ANY (
      ARRAY(
        SELECT held_task.id
        FROM horsies_tasks held_task
        WHERE held_task.queue_name = p_name
          AND held_task.claimed_by IS NOT NULL
          AND held_task.finished_at IS NULL
        FOR NO KEY UPDATE SKIP LOCKED
      )
      || ARRAY(
        SELECT stopping_task.id
        FROM horsies_tasks stopping_task
        WHERE stopping_task.queue_name = p_name AND stopping_task.order_stop IS NOT NULL
        FOR NO KEY UPDATE
      )
    );
  END IF;

  SELECT horsies_note(
    p_action, p_actor, p_name, p_reason,
    jsonb_object_agg(c.name, to_jsonb(v_old) -> c.name),
    jsonb_object_agg(c.name, to_jsonb(v_new) -> c.name)
  )
  INTO lost
  FROM unnest(changed) AS c (name);

  PERFORM pg_notify(p_channel || '_new', '0 ' || p_name);
END
$$;
