-- Returns the row of a pass for a task that it claimed or found late, see horsies_passed. The body
-- is one expression, which PostgreSQL puts into the statement that calls it: there it reads
-- columns, and no row of the table is formed.
-- It takes any times: a difference with an infinite one raises on some versions of PostgreSQL.
CREATE OR REPLACE FUNCTION horsies_claimed(p_kind text, p_task horsies_tasks) RETURNS horsies_passed
LANGUAGE sql STABLE AS $$
  SELECT ROW(
    p_kind, p_task.id, p_task.claim_generation, p_task.lane::text, p_task.task_name::text,
    CASE p_kind WHEN 'late' THEN '{}' ELSE p_task.kwargs::text END,
    coalesce(p_task.attempts_before, 0) + p_task.retry_count + 1,
    p_task.options::text,
    p_task.queue_name::text,
    extract(epoch FROM p_task.sent_at)::float8,
    p_task.workflow_id IS NOT NULL AND p_task.node_index = 0,
    CASE WHEN isfinite(p_task.enqueued_at) AND isfinite(p_task.claimed_at)
      THEN extract(epoch FROM p_task.enqueued_at - p_task.claimed_at)::float8
      ELSE 0
    END,
    NULL::boolean, NULL::boolean, NULL::boolean, NULL::text
  )::horsies_passed
$$;
