-- Send: the tasks of one call appear, PENDING, in the caller's transaction; move: (none) -> PENDING. A function, because a session
-- plans what is in it once, and the plan of this INSERT takes longer than its work. Nothing is prepared by name, so poolers may
-- lend the session to somebody else after each transaction.
-- Rows of one transaction share now(); their ids, which grow, keep them in order. A delay and p_good_for count from this very moment,
-- or from p_now, which stands in for the clock in tests. The partition
-- follows from the queue's rule, and the rule's version is kept: whoever meets a row of an older rule keys it anew.
-- The trigger on the table wakes the workers; p_told is what it says. NULL: tasks were sent. 0: tasks were sent, and more may
-- follow without a word. The number of the table of tasks: nothing, they were told of this queue a moment ago. If that was another
-- table (one session, a schema per tenant) it speaks nevertheless, so the number is returned; and so it does of a task that has
-- a moment of its own: workers may have looked behind that for the last time, or have to hear that something is due later.
-- The setting goes before the function ends: whatever else is inserted in this transaction is announced as ever. `:=` because
-- PERFORM would run a statement.
-- Locks: none but the new rows. Index: primary key of horsies_queues.
CREATE FUNCTION horsies_send(
  p_ids uuid[], p_kwargs jsonb, p_task_name text, p_queue_name text, p_lane text, p_priority smallint, p_delay interval,
  p_due_at timestamptz, p_good_until timestamptz, p_max_retries smallint, p_options jsonb, p_told oid, p_good_for interval,
  p_now timestamptz
) RETURNS oid LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_table oid := 'horsies_tasks'::regclass;
  v_voice text;
BEGIN
  IF p_told IS NOT NULL THEN
    v_voice := set_config('horsies.voice', CASE WHEN p_told = v_table AND p_due_at IS NULL AND p_delay IS NULL THEN 'quiet' ELSE 'more' END, true);
  END IF;
  INSERT INTO horsies_tasks (id, task_name, queue_name, lane, priority, kwargs, sent_at, enqueued_at, good_until,
                             partition_key, partition_version, max_retries, options)
  SELECT sent.id, p_task_name, p_queue_name, p_lane, p_priority, sent.kwargs,
         v_now, coalesce(p_due_at, v_now + p_delay, p_now, now()), coalesce(p_good_until, v_now + p_good_for),
         CASE WHEN queue.partition_by_args IS NOT NULL OR queue.partition_by_task  -- most queues have no rule: spare them the call
              THEN horsies_partition_key(queue.partition_by_args, queue.partition_by_task, sent.kwargs, p_task_name) END,
         queue.partition_version, p_max_retries, p_options
  FROM ROWS FROM (unnest(p_ids), jsonb_array_elements(p_kwargs)) AS sent (id, kwargs)
  LEFT JOIN horsies_queues queue ON queue.name = p_queue_name;
  IF p_told IS NOT NULL THEN
    v_voice := set_config('horsies.voice', '', true);
  END IF;
  RETURN v_table;
END
$$;
