-- Decides whether and when a failed attempt is retried: due_at (NULL: never). poison: the task has ended p_max_crashes processes (0: never
-- poison). core/retry.py has the same rule in Python; a test compares the two.
-- p_classes: the class names of the exception; the policy lists error codes and class names together. p_retry: what the task itself asked
-- for: true, or a retry delay in seconds. p_crashed: the process died; with p_retry, it was interrupted, and the task is given back even
-- if it has no retries left.
-- Locks: none. Index: primary key of horsies_task_attempts, only if a process died.
CREATE FUNCTION horsies_retry_decision(p_id uuid, p_options jsonb, p_retry_count int, p_max_retries int, p_good_until timestamptz,
                              p_cancelled boolean, p_code text, p_classes jsonb, p_retry jsonb, p_crashed boolean, p_max_crashes int,
                              p_now timestamptz,
                              OUT due_at timestamptz, OUT poison boolean) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  poison := coalesce(p_crashed, false) AND p_max_crashes > 0 AND p_max_crashes <= 1 + (
    SELECT count(*) FROM horsies_task_attempts a WHERE a.task_id = p_id AND a.outcome = 'WORKER_FAILURE');
  IF poison OR p_cancelled OR (p_retry_count >= p_max_retries AND NOT (coalesce(p_crashed, false) AND p_retry IS NOT NULL)) THEN
    RETURN;
  END IF;
  IF p_retry IS NULL
    AND NOT coalesce(p_options -> 'retry' -> 'codes' ?| (ARRAY(SELECT jsonb_array_elements_text(p_classes)) || p_code), false)
  THEN
    RETURN;
  END IF;
  due_at := p_now + CASE jsonb_typeof(p_retry) WHEN 'number' THEN make_interval(secs => p_retry::float8)
                      ELSE horsies_retry_delay(p_options -> 'retry', p_retry_count + 1) END;
  IF due_at >= p_good_until THEN
    due_at := NULL;
  END IF;
END
$$;
