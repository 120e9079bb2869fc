-- Returns how many seconds the oldest due task of each queue has waited. Parked tasks are left out,
-- because they wait for their own partition, and so are tasks that may not start because of their
-- run (see horsies_forbidding).
-- It reads the first task of each lane and priority, which is the oldest, however many tasks wait.
-- Index: horsies_tasks_claim, in its order.
CREATE OR REPLACE FUNCTION horsies_longest_waits(p_names text[])
RETURNS TABLE (queue_name text, seconds float8) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
BEGIN
  RETURN QUERY
  SELECT q.name, extract(epoch FROM v_now - greatest(oldest.moment, to_timestamp(0)))::float8
  FROM unnest(p_names) AS q (name)
  CROSS JOIN LATERAL (
    SELECT min(first.enqueued_at) AS moment
    FROM horsies_priorities(q.name) AS step
    CROSS JOIN LATERAL (
      SELECT t.enqueued_at
      FROM horsies_tasks t
      WHERE t.queue_name = q.name
        AND t.lane = step.lane
        AND t.priority = step.priority
        AND t.claimed_by IS NULL
        AND t.finished_at IS NULL
        AND NOT t.parked
        AND (
          t.workflow_id IS NULL
          OR NOT EXISTS (SELECT FROM horsies_forbidding(t.workflow_id, t.node))
        )
      ORDER BY t.enqueued_at
      LIMIT 1
    ) AS first
    WHERE first.enqueued_at <= v_now
  ) AS oldest
  WHERE oldest.moment IS NOT NULL;
END
$$;
