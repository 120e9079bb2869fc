-- Gives up the failed task that stops a partition, so that the next one starts; writes the audit. skipped: its id; NULL: none stops it.
-- p_arguments: the values of the arguments in the rule, by name; p_task: the name of the task, for a rule by task.
-- The audit has no key, which contains arguments. lost: as horsies_note returns it.
-- Locks: the row of the task; waits for its holder. Index: horsies_tasks_order, primary keys.
CREATE OR REPLACE FUNCTION horsies_skip_stopped(p_queue text, p_arguments json, p_task text, p_actor text, p_reason text, p_channel text,
                                     OUT skipped uuid, OUT key text, OUT lost text) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  SELECT horsies_partition_key(q.partition_by_args, q.partition_by_task, p_arguments, p_task, NULL) INTO key
  FROM horsies_queues q WHERE q.name = p_queue;
  SELECT t.id INTO skipped FROM horsies_tasks t
  WHERE t.queue_name = p_queue AND t.partition_key = key AND t.ordered AND (t.finished_at IS NULL OR t.order_stop IS NOT NULL)
  ORDER BY least(t.claim_generation, 1) DESC, t.sent_at, t.id LIMIT 1;
  UPDATE horsies_tasks t SET order_stop = NULL, partition_key = CASE WHEN t.redacted_at IS NULL THEN t.partition_key END
  WHERE t.id = skipped AND t.order_stop IS NOT NULL;
  IF NOT FOUND THEN
    skipped := NULL;
    RETURN;
  END IF;
  PERFORM horsies_pass_turn(ARRAY[p_queue], ARRAY[key], p_channel);
  lost := horsies_note('queue.skip', p_actor, p_queue, p_reason, jsonb_build_object('task', skipped), NULL);
END
$$;
