-- Decides whether and when a failed attempt is retried. tests/support/models/retry.py has the same
-- rule in Python, and a test compares the two.
-- The delay is that of the policy in p_options before this retry: jitter adds or removes up to a
-- quarter, and the policy's maximum and 30 days bound it. Without a valid list of numbers there is
-- no delay, and no retry. The function never raises, because then the task could not even be
-- failed.
-- Args:
--   p_classes: the class names of the exception; the policy lists error codes and class names
--     together.
--   p_retry: the request of the task itself: true, or a retry delay in seconds.
--   p_crashed: the process died; with p_retry, it was interrupted, and the task is given back even
--     if it has no retries left.
-- Returns:
--   due_at: when it is retried, NULL: never.
--   poison: the task has ended p_max_crashes processes (0: never poison), since it was retried by
--     hand if it was.
-- Index: primary keys, only if a process died.
CREATE OR REPLACE FUNCTION horsies_retry_decision(
  p_id uuid, p_options jsonb, p_retry_count int, p_max_retries int, p_good_until timestamptz,
  p_cancelled boolean, p_code text, p_classes jsonb, p_retry jsonb, p_crashed boolean,
  p_max_crashes int, p_now timestamptz,
  OUT due_at timestamptz, OUT poison boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  c_longest CONSTANT numeric := 2592000;
  v_policy jsonb := p_options -> 'retry';
  v_delays jsonb := CASE jsonb_typeof(v_policy -> 'intervals')
    WHEN 'array' THEN v_policy -> 'intervals'
    ELSE '[]'
  END;
  v_fixed boolean := v_policy ->> 'strategy' IS NOT DISTINCT FROM 'fixed';
  v_delay jsonb := v_delays -> CASE WHEN v_fixed
    THEN least(p_retry_count + 1, jsonb_array_length(v_delays)) - 1
    ELSE 0
  END;
BEGIN
  poison := coalesce(p_crashed, false)
    AND p_max_crashes > 0
    AND p_max_crashes <= 1 + (
      SELECT count(*)
      FROM horsies_task_attempts a
      JOIN horsies_tasks t ON t.id = a.task_id AND a.attempt > coalesce(t.attempts_before, 0)
      WHERE a.task_id = p_id AND a.outcome = 'WORKER_FAILURE'
    );
  IF poison
    OR p_cancelled
    OR (
      p_retry_count >= p_max_retries
      AND NOT (coalesce(p_crashed, false) AND p_retry IS NOT NULL)
    )
  THEN
    RETURN;
  END IF;

  IF p_retry IS NULL
    AND NOT coalesce(
      v_policy -> 'codes' ?| (ARRAY(SELECT jsonb_array_elements_text(p_classes)) || p_code),
      false)
  THEN
    RETURN;
  END IF;

  IF jsonb_typeof(p_retry) = 'number' THEN
    due_at := p_now + make_interval(secs => p_retry::float8);
  ELSIF jsonb_typeof(v_delay) = 'number' THEN
    due_at := p_now + make_interval(secs => greatest(0, least(
      least(v_delay::numeric, c_longest)
        * CASE WHEN v_fixed THEN 1 ELSE 2 ^ least(p_retry_count, 40) END::numeric
        * CASE WHEN v_policy -> 'jitter' = 'true' THEN 0.75 + random() / 2 ELSE 1 END::numeric,
      CASE jsonb_typeof(v_policy -> 'most')
        WHEN 'number' THEN (v_policy -> 'most')::numeric
        ELSE c_longest
      END,
      c_longest))::float8);
  END IF;
  IF due_at >= p_good_until THEN
    due_at := NULL;
  END IF;
END
$$;
