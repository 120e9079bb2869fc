-- Gives up the failed task that stops a partition, so that the next one starts; writes the audit. skipped: its id; NULL: none stops it.
-- p_id: the task; NULL: the one that stops the partition of a queue, by the values of the arguments in its rule and, for a rule by task, the
-- name of the task. The audit has no key, which contains arguments. lost: as horsies_note returns it.
-- Locks: the row of the task; waits for its holder. Index: horsies_tasks_order, primary keys.
CREATE OR REPLACE FUNCTION horsies_skip_stopped(p_queue text, p_id uuid, p_arguments json, p_task text, p_actor text, p_reason text, p_channel text,
                                     OUT skipped uuid, OUT lost text) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_key text;
BEGIN
  IF p_id IS NULL THEN
    SELECT h.id INTO p_id
    FROM horsies_queues q
    CROSS JOIN LATERAL horsies_partition_key(q.partition_by_args, q.partition_by_task, p_arguments, p_task, NULL) AS k (key)
    CROSS JOIN LATERAL horsies_order_head(horsies_effective_limits(q), k.key) AS h WHERE q.name = p_queue;
  END IF;
  SELECT t.id, t.queue_name, t.partition_key INTO skipped, p_queue, v_key
  FROM horsies_tasks t WHERE t.id = p_id AND t.order_stop IS NOT NULL FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  UPDATE horsies_tasks t SET order_stop = NULL, partition_key = CASE WHEN t.redacted_at IS NULL THEN t.partition_key END WHERE t.id = skipped;
  PERFORM horsies_unpark_next(ARRAY[p_queue], ARRAY[v_key], p_channel);
  lost := horsies_note('queue.skip', p_actor, p_queue, p_reason, jsonb_build_object('task', skipped), NULL);
END
$$;
