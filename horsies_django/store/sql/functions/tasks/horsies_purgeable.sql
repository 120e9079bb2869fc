-- Returns tasks that a purge concerns, at most p_many: waiting ones sent until p_before, or with p_finished those finished until then.
-- p_queue, p_name and p_status narrow them; NULL: any. p_in_runs: those of workflow runs, which a purge leaves, instead of the others.
-- Custom plans, so that the conditions that are given can use the indexes.
-- Locks: none. Index: horsies_tasks_claim, horsies_tasks_parked, horsies_tasks_finished, horsies_tasks_node.
CREATE OR REPLACE FUNCTION horsies_purgeable(
  p_finished boolean, p_queue text, p_name text, p_status text, p_before timestamptz, p_in_runs boolean, p_many int
) RETURNS SETOF uuid LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_custom_plan AS $$
BEGIN
  IF p_finished THEN
    RETURN QUERY
    SELECT t.id FROM horsies_tasks t
    WHERE t.finished_at <= p_before AND (p_queue IS NULL OR t.queue_name = p_queue) AND (p_name IS NULL OR t.task_name = p_name)
      AND (p_status IS NULL OR t.status = p_status) AND t.order_stop IS NULL AND (t.workflow_id IS NOT NULL) = p_in_runs
    LIMIT p_many;
    RETURN;
  END IF;
  RETURN QUERY
  SELECT t.id FROM horsies_tasks t
  WHERE t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
    AND t.sent_at <= p_before AND (p_queue IS NULL OR t.queue_name = p_queue) AND (p_name IS NULL OR t.task_name = p_name)
    AND (t.workflow_id IS NOT NULL) = p_in_runs
  UNION ALL
  SELECT t.id FROM horsies_tasks t
  WHERE t.claimed_by IS NULL AND t.finished_at IS NULL AND t.parked
    AND t.sent_at <= p_before AND (p_queue IS NULL OR t.queue_name = p_queue) AND (p_name IS NULL OR t.task_name = p_name)
    AND (t.workflow_id IS NOT NULL) = p_in_runs
  LIMIT p_many;
END
$$;
