-- Returns the lanes and priorities in which claimable tasks of a queue wait, due or not, by one
-- probe for each.
-- Index: horsies_tasks_claim, in its order, no sort.
CREATE OR REPLACE FUNCTION horsies_priorities(p_queue text)
RETURNS TABLE (lane text, priority smallint) LANGUAGE sql STABLE AS $$
  WITH RECURSIVE step (lane, priority) AS (
    (
      SELECT t.lane, t.priority
      FROM horsies_tasks t
      WHERE t.queue_name = p_queue
        AND t.claimed_by IS NULL
        AND t.finished_at IS NULL
        AND NOT t.parked
      ORDER BY t.lane, t.priority
      LIMIT 1
    )
    UNION ALL
    SELECT next.lane, next.priority
    FROM step
    CROSS JOIN LATERAL (
      SELECT t.lane, t.priority
      FROM horsies_tasks t
      WHERE t.queue_name = p_queue
        AND (t.lane, t.priority) > (step.lane, step.priority)
        AND t.claimed_by IS NULL
        AND t.finished_at IS NULL
        AND NOT t.parked
      ORDER BY t.lane, t.priority
      LIMIT 1
    ) AS next
  )
  SELECT step.lane::text, step.priority
  FROM step
$$;
