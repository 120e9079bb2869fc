-- Deletes those of some tasks that have finished and belong to no workflow run, with their attempts and steps. Returns how many.
-- Locks: the task rows, skipping locked ones. Index: primary keys.
CREATE FUNCTION horsies_delete_finished(p_ids uuid[]) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_ids uuid[];
BEGIN
  v_ids := ARRAY(
    SELECT t.id FROM horsies_tasks t
    WHERE t.id = ANY (p_ids) AND t.finished_at IS NOT NULL AND t.workflow_id IS NULL
    FOR UPDATE SKIP LOCKED);
  DELETE FROM horsies_task_attempts a WHERE a.task_id = ANY (v_ids);
  DELETE FROM horsies_task_steps s WHERE s.task_id = ANY (v_ids);
  DELETE FROM horsies_tasks t WHERE t.id = ANY (v_ids);
  RETURN cardinality(v_ids);
END
$$;
