-- Gives up the failed task that stops a partition, so that the next one starts, and writes the
-- audit. The audit does not have the key of the partition, because this contains arguments.
-- Args:
--   p_id: the task; NULL for the task that stops the partition given by the next arguments.
--   p_queue, p_arguments, p_task: the queue of the partition, the values of the arguments in its
--     rule and, for a rule by task, the name of the task.
-- Returns:
--   skipped: the id of the task; NULL if none stops the partition.
--   lost: as horsies_note returns it.
--   first, status: without p_id, if skipped is NULL: the task that comes first in the partition,
--     NULL if there is none, and its status.
-- Locks: the row of the task; waits for its holder.
-- Index: horsies_tasks_order, primary keys.
CREATE OR REPLACE FUNCTION horsies_skip_stopped(
  p_queue text, p_id uuid, p_arguments json, p_task text, p_actor text, p_reason text,
  p_channel text, OUT skipped uuid, OUT lost text, OUT first uuid, OUT status text
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_queue horsies_queues;
  v_limits horsies_limits;
  v_key text;
  v_task record;
BEGIN
  IF p_id IS NULL THEN
    SELECT q.* INTO v_queue FROM horsies_queues q WHERE q.name = p_queue;

    v_limits := horsies_effective_limits(v_queue);
    v_key := horsies_partition_key(
      v_queue.partition_by_args, v_queue.partition_by_task, p_arguments, p_task, NULL
    );
    p_id := (SELECT h.id FROM horsies_order_head(v_limits, v_key) AS h);
  END IF;

  SELECT t.id, t.queue_name::text, t.partition_key
  INTO v_task
  FROM horsies_tasks t
  WHERE t.id = p_id AND t.order_stop = 'stop'
  FOR NO KEY UPDATE;

  IF NOT FOUND THEN  -- it may have waited for the lock, so it looks anew
    SELECT t.id, t.status
    INTO first, status
    FROM horsies_order_head(v_limits, v_key) AS h
    JOIN horsies_tasks t ON t.id = h.id;

    RETURN;
  END IF;

  skipped := v_task.id;

  UPDATE horsies_tasks t
  SET
    order_stop = NULL,
    partition_key = CASE WHEN t.redacted_at IS NULL THEN t.partition_key END
  WHERE t.id = skipped;

  PERFORM horsies_unpark_next(ARRAY[v_task.queue_name], ARRAY[v_task.partition_key], p_channel);
  lost := horsies_note(
    'queue.skip', p_actor, v_task.queue_name, p_reason, jsonb_build_object('task', skipped), NULL
  );
END
$$;
