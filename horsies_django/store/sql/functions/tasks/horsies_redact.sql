-- Removes the data of a finished task: arguments, metadata, key, result, steps, error messages and
-- exceptions of its attempts, and its partition if that contains arguments. When, where and how the
-- task ran remains. Writes the audit.
--
-- The result becomes an error, with the task's own error code, which the admin's filters use, or
-- RESULT_REDACTED instead of a value. A partition key that contains only the task's name stays; a
-- long key is no longer JSON and is removed. The key of a task that stops its partition is removed
-- when the partition goes on: when the task is skipped, or those behind it are cancelled.
--
-- Tasks that were merged into it have the same arguments: they are redacted as well, and so are the
-- tasks that were merged into these.
--
-- Returns: the status, NULL for an unknown task; redacted: false if the task has not finished or
--   was redacted before; lost: as horsies_note returns it.
-- Locks: the task's row and those of merged ones; waits for their holders.
-- Index: primary keys, horsies_send_keys_task, horsies_tasks_merged.
CREATE OR REPLACE FUNCTION horsies_redact(
  p_id uuid, p_actor text, p_reason text, OUT status text, OUT redacted boolean, OUT lost text
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_task horsies_tasks;
  v_one horsies_tasks;
  v_now timestamptz := clock_timestamp();
BEGIN
  redacted := false;

  SELECT t.* INTO v_task FROM horsies_tasks t WHERE t.id = p_id FOR NO KEY UPDATE;
  status := v_task.status;
  IF v_task.finished_at IS NULL OR v_task.redacted_at IS NOT NULL THEN
    RETURN;
  END IF;

  FOR v_one IN
    WITH RECURSIVE merged AS (
      SELECT p_id AS id
      UNION  -- a circle, which only others can write, ends
      SELECT t.id
      FROM merged m
      JOIN horsies_tasks t ON t.merged_into = m.id
    )
    SELECT t.*
    FROM horsies_tasks t
    WHERE t.id = ANY (ARRAY(SELECT m.id FROM merged m)) AND t.redacted_at IS NULL
    ORDER BY t.id
    FOR NO KEY UPDATE
  LOOP
    UPDATE horsies_tasks t
    SET
      kwargs = '{}',
      options = nullif(t.options - ARRAY['metadata', 'unique'], '{}'),
      redacted_at = v_now,
      partition_key = CASE
        WHEN t.partition_key = jsonb_build_object('', t.task_name)::text
          OR t.order_stop IS NOT NULL
        THEN t.partition_key
        END,
      result = horsies_error_result(coalesce(t.error_code, 'RESULT_REDACTED'), 'redacted')
    WHERE t.id = v_one.id;

    UPDATE horsies_task_attempts a
    SET
      error_message = 'redacted',
      exception_class = NULL,
      traceback = NULL,
      site = NULL,
      site_line = NULL
    WHERE a.task_id = v_one.id AND a.error_message IS NOT NULL;

    DELETE FROM horsies_task_steps s WHERE s.task_id = v_one.id;

    DELETE FROM horsies_send_keys k WHERE k.task_id = v_one.id AND k.arguments IS NOT NULL;

    DELETE FROM horsies_send_keys k
    WHERE k.digest = horsies_unique_digest(v_one.options) AND k.task_id = v_one.id;
  END LOOP;

  lost := horsies_note(
    'task.redact', p_actor, p_id::text, p_reason, NULL,
    jsonb_build_object('task_name', v_task.task_name, 'status', v_task.status)
  );
  redacted := true;
END
$$;
