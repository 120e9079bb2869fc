-- Deletes tasks that the caller has picked, with their attempts and steps. The keys of unique tasks
-- are deleted with these; other keys of sends outlive their tasks.
--
-- Returns: how many attempts it has deleted.
-- Locks: the task rows.
CREATE OR REPLACE FUNCTION horsies_delete_tasks(p_ids uuid[]) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_attempts int;
BEGIN
  DELETE FROM horsies_task_attempts a WHERE a.task_id = ANY (p_ids);
  GET DIAGNOSTICS v_attempts = ROW_COUNT;

  DELETE FROM horsies_task_steps s WHERE s.task_id = ANY (p_ids);

  WITH gone AS (
    DELETE FROM horsies_tasks task
    WHERE task.id = ANY (p_ids)
    RETURNING task.options
  )
  DELETE FROM horsies_send_keys send_key
  WHERE send_key.digest = ANY (ARRAY(
      SELECT horsies_unique_digest(deleted_task.options)
      FROM gone deleted_task
      WHERE deleted_task.options ? 'unique'
    ))
    AND send_key.task_id = ANY (p_ids);

  RETURN v_attempts;
END
$$;
