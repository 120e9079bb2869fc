-- Counts the tasks of queues that are due and wait, parked ones included, up to one more than
-- p_bound. The row of the cluster counts the tasks of all queues.
-- The scan goes from one lane and priority to the next, so tasks that are due in the future cost
-- one probe each time. Parked tasks are always due.
-- Index: horsies_tasks_claim, horsies_tasks_parked, in their order.
CREATE OR REPLACE FUNCTION horsies_count_pending(p_names text[], p_bound int)
RETURNS TABLE (queue_name text, many int) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz := clock_timestamp();  -- a volatile call cannot be an index condition
BEGIN
  RETURN QUERY
  SELECT q.name::text, waiting.many::int
  FROM horsies_queues q
  CROSS JOIN LATERAL (
    SELECT count(*) AS many
    FROM (
      SELECT FROM horsies_queues counted
      CROSS JOIN LATERAL (
        SELECT due.id
        FROM horsies_priorities(counted.name) AS step
        CROSS JOIN LATERAL (
          SELECT t.id
          FROM horsies_tasks t
          WHERE t.queue_name = counted.name
            AND t.lane = step.lane
            AND t.priority = step.priority
            AND t.enqueued_at <= v_now
            AND t.claimed_by IS NULL
            AND t.finished_at IS NULL
            AND NOT t.parked
          ORDER BY t.enqueued_at, t.id
          LIMIT p_bound + 1
        ) AS due
        UNION ALL
        (
          SELECT t.id
          FROM horsies_tasks t
          WHERE t.queue_name = counted.name
            AND t.claimed_by IS NULL
            AND t.finished_at IS NULL
            AND t.parked
          ORDER BY t.partition_key
          LIMIT p_bound + 1
        )
      ) AS task
      WHERE q.name IN (counted.name, '*')
      LIMIT p_bound + 1
    ) AS bounded
  ) AS waiting
  WHERE q.name = ANY (p_names);
END
$$;
