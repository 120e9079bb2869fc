-- Returns how many seconds the oldest parked task of each queue has waited. It reads the first task
-- of each partition, lane and priority, which is the oldest, however many tasks are parked.
-- Args: p_many is the largest number of these first tasks to read in a queue.
-- Returns: a row for each queue that has a parked task.
-- Index: horsies_tasks_parked, in its order.
CREATE OR REPLACE FUNCTION horsies_parked_waits(p_names text[], p_many int)
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
    WITH RECURSIVE step (partition_key, lane, priority, moment) AS (
      (
        SELECT t.partition_key, t.lane, t.priority, t.enqueued_at
        FROM horsies_tasks t
        WHERE t.queue_name = q.name
          AND t.claimed_by IS NULL
          AND t.finished_at IS NULL
          AND t.parked
        ORDER BY t.partition_key, t.lane, t.priority, t.enqueued_at
        LIMIT 1
      )
      UNION ALL
      SELECT next.partition_key, next.lane, next.priority, next.enqueued_at
      FROM step
      CROSS JOIN LATERAL (
        SELECT t.partition_key, t.lane, t.priority, t.enqueued_at
        FROM horsies_tasks t
        WHERE t.queue_name = q.name
          AND (t.partition_key, t.lane, t.priority)
            > (step.partition_key, step.lane, step.priority)
          AND t.claimed_by IS NULL
          AND t.finished_at IS NULL
          AND t.parked
        ORDER BY t.partition_key, t.lane, t.priority, t.enqueued_at
        LIMIT 1
      ) AS next
    )
    SELECT min(found.moment) AS moment
    FROM (SELECT step.moment FROM step LIMIT p_many) AS found
  ) AS oldest
  WHERE oldest.moment IS NOT NULL;
END
$$;
