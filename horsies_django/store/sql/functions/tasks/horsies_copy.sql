-- Sends a copy of a finished task that was not redacted: a new row, due now, that refers to the old
-- one.
--
-- Args: p_new: the id of the copy.
-- Returns: the status of the old task, whether it was redacted, and whether it was copied; no row
--   if there is no such task.
-- Locks: none but the new row.
CREATE OR REPLACE FUNCTION horsies_copy(p_id uuid, p_new uuid)
RETURNS TABLE (status text, redacted boolean, copied boolean) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  INSERT INTO horsies_tasks (
    id, task_name, queue_name, lane, priority, kwargs, sent_at, enqueued_at,
    partition_key, partition_version, max_retries, options, codec, copy_of
  )
  SELECT
    p_new, t.task_name, t.queue_name, t.lane, t.priority, t.kwargs, clock_timestamp(), now(),
    t.partition_key, t.partition_version, t.max_retries, t.options, t.codec, t.id
  FROM horsies_tasks t
  WHERE t.id = p_id AND t.finished_at IS NOT NULL AND t.redacted_at IS NULL;

  RETURN QUERY
  SELECT t.status::text, t.redacted_at IS NOT NULL, FOUND
  FROM horsies_tasks t
  WHERE t.id = p_id;
END
$$;
