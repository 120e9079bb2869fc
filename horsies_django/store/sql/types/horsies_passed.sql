-- A row that a pass returns: a task that it claimed, of the kind 'start' or 'prefetch', or found 'late'; and last, of the kind 'short' or
-- 'whole', what the pass says of itself: seconds until the next task becomes due, whether a cap or the total left tasks behind, whether
-- another pass should follow, whether the worker was declared dead, and the report of what is unusual.
-- id to in_run are the columns of a claim. No other text lists them: Python reads them by name into a Claim (core/records.py). sent_at is an
-- epoch; in_run: it is a task of a workflow, and no element of a map, except perhaps the first.
-- Locks: none. Index: none.
CREATE TYPE horsies_passed AS (
  kind text, id uuid, generation int, lane text, task_name text, kwargs text, attempt int, options text, queue_name text, sent_at float8,
  in_run boolean, due_in float8, limited boolean, again boolean, dead boolean, report text);
CREATE FUNCTION horsies_claimed(p_kind text, p_task horsies_tasks) RETURNS SETOF horsies_passed LANGUAGE sql STABLE ROWS 1 AS $$
  SELECT p_kind, p_task.id, p_task.claim_generation, p_task.lane::text, p_task.task_name::text,
         CASE p_kind WHEN 'late' THEN '{}' ELSE p_task.kwargs::text END, p_task.retry_count + 1, p_task.options::text,
         p_task.queue_name::text, extract(epoch FROM p_task.sent_at)::float8, p_task.workflow_id IS NOT NULL AND p_task.node_index = 0, NULL::float8, NULL::boolean, NULL::boolean,
         NULL::boolean, NULL::text
$$
