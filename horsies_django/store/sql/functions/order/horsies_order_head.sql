-- Returns the task that alone may start in a partition of a queue with a policy: the task that has
-- begun and is not final, even if it waits for a retry; else, in an ordered queue, the first task
-- that was sent, or the failed task that stops the partition. Overlapping transactions have no
-- order, so a task that has begun comes before tasks that become visible later.
-- Returns: no row if there is no such task, if the queue has no policy, or if any of the equal
-- tasks that are coalesced may begin.
-- Index: horsies_tasks_order, whose condition the query repeats.
CREATE OR REPLACE FUNCTION horsies_order_head(p_limits horsies_limits, p_key text)
RETURNS TABLE (id uuid, order_stop text, parked boolean) LANGUAGE sql STABLE ROWS 1 AS $$
  SELECT f.id, f.order_stop, f.parked
  FROM (
    SELECT t.id, t.order_stop, t.parked, t.claim_generation
    FROM horsies_tasks t
    WHERE t.queue_name = p_limits.queue_name
      AND t.partition_key = p_key
      AND t.ordered
      AND (t.finished_at IS NULL OR t.order_stop IS NOT NULL)
      AND p_limits.partition_policy IS NOT NULL
    ORDER BY least(t.claim_generation, 1) DESC, t.sent_at, t.id
    LIMIT 1
  ) AS f
  WHERE p_limits.partition_policy <> 'coalesce' OR f.claim_generation > 0
$$;
