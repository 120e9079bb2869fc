-- Inserts the tasks of one call in the caller's transaction. It is a function because a session
-- plans its INSERT once, which takes longer than the INSERT itself. No statement is prepared by
-- name, so it works behind poolers.
--
-- Rows of one call have the same sent_at, and their ascending ids keep the order. It is the time of
-- the clock, not of the start of the transaction: scan cursors tell times apart, and a transaction
-- may send a million tasks. Rows keep the version of the partition rule.
--
-- The trigger of horsies_announce does not notify workers again that were just notified. Tasks with
-- a due time and those of another table (a schema per tenant) are announced nevertheless, so the
-- table's OID is returned. horsies.quiet is reset before the function ends, so other INSERTs are
-- announced.
--
-- Args: p_notified: the OID of the table whose workers were just notified.
--   p_now: replaces the clock in tests.
-- Returns: the OID of the table.
-- Moves: (none) -> PENDING.
-- Locks: none but the new rows.
CREATE OR REPLACE FUNCTION horsies_send(
  p_ids uuid[], p_kwargs json, p_task_name text, p_queue_name text, p_lane text,
  p_priority smallint, p_delay interval, p_due_at timestamptz, p_good_until timestamptz,
  p_max_retries smallint, p_options jsonb, p_notified oid, p_good_for interval,
  p_now timestamptz, p_codec text
) RETURNS oid LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_table oid := 'horsies_tasks'::regclass;
  v_quiet boolean := coalesce(
    p_notified = v_table AND p_due_at IS NULL AND p_delay IS NULL, false
  );
  v_set text;  -- PERFORM would run a statement
BEGIN
  IF v_quiet THEN
    v_set := set_config('horsies.quiet', 'on', true);
  END IF;

  INSERT INTO horsies_tasks (
    id, task_name, queue_name, lane, priority, kwargs,
    sent_at, enqueued_at, good_until,
    partition_key,
    partition_version, max_retries, options, codec
  )
  SELECT
    sent.id, p_task_name, p_queue_name, p_lane, p_priority, sent.kwargs,
    v_now, coalesce(p_due_at, v_now + p_delay, v_now), coalesce(p_good_until, v_now + p_good_for),
    CASE  -- most queues have no rule and need no call
      WHEN queue.partition_by_args IS NOT NULL OR queue.partition_by_task THEN
        horsies_partition_key(
          queue.partition_by_args, queue.partition_by_task, sent.kwargs, p_task_name, p_codec
        )
      END,
    queue.partition_version, p_max_retries, p_options, p_codec
  FROM ROWS FROM (unnest(p_ids), json_array_elements(p_kwargs)) AS sent (id, kwargs)
  LEFT JOIN horsies_queues queue ON queue.name = p_queue_name;

  IF v_quiet THEN
    v_set := set_config('horsies.quiet', '', true);
  END IF;

  RETURN v_table;
END
$$;
