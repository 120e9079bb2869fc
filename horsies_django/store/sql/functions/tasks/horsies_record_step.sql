-- Records a step of a running task, unless its claim has ended: then it writes nothing.
--
-- Until the transaction ends, the task stays locked, so no other worker gets it before the step is
-- committed. It is a function because a session plans its statements once, which takes longer than
-- they do.
--
-- Returns: whether the step was recorded.
-- Locks: the task's row; waits for its holder.
CREATE OR REPLACE FUNCTION horsies_record_step(
  p_task uuid, p_worker uuid, p_generation int, p_name text, p_digest text, p_result jsonb
) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  PERFORM
  FROM horsies_tasks t
  WHERE t.id = p_task
    AND t.claimed_by = p_worker
    AND t.claim_generation = p_generation
    AND t.status = 'RUNNING'
  FOR NO KEY UPDATE;

  IF NOT FOUND THEN
    RETURN false;
  END IF;

  INSERT INTO horsies_task_steps (task_id, name, digest, result)
  VALUES (p_task, p_name, p_digest, p_result);

  RETURN true;
END
$$;
