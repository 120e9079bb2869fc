-- Gives up the failed task that stops a partition, so that the next one starts; writes the audit. skipped: its id; NULL: none stops it.
-- p_arguments: the values of the arguments in the rule, by name; p_task: the name of the task, for a rule by task.
-- The audit has no key, which contains arguments. lost: as horsies_note returns it.
-- Locks: the row of the task; waits for its holder. Index: horsies_tasks_order, primary keys.
CREATE OR REPLACE FUNCTION horsies_skip_stopped(p_queue text, p_arguments json, p_task text, p_actor text, p_reason text, p_channel text,
                                     OUT skipped uuid, OUT lost text) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_key text;
BEGIN
  SELECT k.key, h.id INTO v_key, skipped
  FROM horsies_queues q
  CROSS JOIN LATERAL horsies_partition_key(q.partition_by_args, q.partition_by_task, p_arguments, p_task, NULL) AS k (key)
  LEFT JOIN LATERAL horsies_order_head(horsies_effective_limits(q), k.key) AS h ON true WHERE q.name = p_queue;
  UPDATE horsies_tasks t SET order_stop = NULL, partition_key = CASE WHEN t.redacted_at IS NULL THEN t.partition_key END
  WHERE t.id = skipped AND t.order_stop IS NOT NULL;
  IF NOT FOUND THEN
    skipped := NULL;
    RETURN;
  END IF;
  PERFORM horsies_unpark_next(ARRAY[p_queue], ARRAY[v_key], p_channel);
  lost := horsies_note('queue.skip', p_actor, p_queue, p_reason, jsonb_build_object('task', skipped), NULL);
END
$$;
