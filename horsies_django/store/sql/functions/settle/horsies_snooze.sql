-- Decides about a running task that requests to run again at another time.
-- Args: p_how: "seconds" from now or "until", and the "most" snoozes.
-- Returns: members of an outcome: the task is due then, at the earliest now (due_at); or it ends,
-- because it was cancelled, or was snoozed too often (final_code).
CREATE OR REPLACE FUNCTION horsies_snooze(
  p_task horsies_tasks, p_how jsonb, p_now timestamptz
) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT
    CASE WHEN e.code IS NOT NULL
      THEN jsonb_build_object(
        'status', e.status,
        'final_code', e.code,
        'error_code', e.code,
        'error_message', e.message,
        'result', horsies_error_result(e.code, e.message)::text)
      ELSE jsonb_build_object(
        'error_code', NULL,
        'error_message', NULL,
        'due_at', greatest(
          p_now,
          coalesce(
            (p_how ->> 'until')::timestamptz,
            p_now + make_interval(secs => (p_how ->> 'seconds')::float8))))
    END
  FROM (SELECT) AS task
  LEFT JOIN LATERAL (
    SELECT *
    FROM (VALUES
      (p_task.cancel_requested_at IS NOT NULL,
       'CANCELLED', 'TASK_CANCELLED', 'the task was cancelled while it ran'),
      (p_task.snooze_count >= (p_how ->> 'most')::int,
       'FAILED', 'SNOOZED_TOO_OFTEN',
       format(
         'the task was snoozed %s times, the most that HORSIES[''MAX_SNOOZES''] allows',
         p_task.snooze_count))
    ) AS v (holds, status, code, message)
    WHERE v.holds
    LIMIT 1
  ) AS e ON true
$$;
