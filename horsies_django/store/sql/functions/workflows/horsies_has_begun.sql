-- Returns whether a finished task has done something that can be undone.
-- This is so if it completed, or if one of its attempts ended without a known outcome: because its
-- process died, because it was stopped while it ran, or because its value could not be stored.
CREATE OR REPLACE FUNCTION horsies_has_begun(p_task uuid, p_status text, p_code text)
RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT
    CASE
      WHEN p_status = 'COMPLETED' OR p_code = 'WORKER_CRASHED' THEN true
      ELSE EXISTS (
        SELECT FROM horsies_task_attempts a
        WHERE a.task_id = p_task
          AND (
            a.outcome = 'WORKER_FAILURE'
            OR a.error_code IN (
              'WORKER_CRASHED', 'TASK_TIMEOUT', 'TASK_CANCELLED', 'WORKER_SERIALIZATION_ERROR',
              'RETURN_TYPE_MISMATCH', 'PAYLOAD_TOO_LARGE'
            )
          )
      )
    END
$$;
