-- Returns the task that alone may start in a partition of a queue with a policy: the one that has begun and is not final, even if it waits
-- for a retry; else, in an ordered queue, the first that was sent, or the failed one that stops the partition. No row: there is none; of
-- equal tasks that are coalesced, any may begin; or the queue has no policy. Overlapping transactions have no order, so one that has begun
-- comes before what becomes visible later.
-- Index: horsies_tasks_order.
CREATE OR REPLACE FUNCTION horsies_order_head(p_limits horsies_limits, p_key text)
RETURNS TABLE (id uuid, order_stop text, parked boolean) LANGUAGE sql STABLE ROWS 1 AS $$
  SELECT f.id, f.order_stop, f.parked FROM (
    SELECT t.id, t.order_stop, t.parked, t.claim_generation FROM horsies_tasks t
    WHERE t.queue_name = p_limits.queue_name AND t.partition_key = p_key AND t.ordered AND (t.finished_at IS NULL OR t.order_stop IS NOT NULL)
      AND p_limits.partition_policy IS NOT NULL
    ORDER BY least(t.claim_generation, 1) DESC, t.sent_at, t.id LIMIT 1
  ) AS f WHERE p_limits.partition_policy <> 'coalesce' OR f.claim_generation > 0
$$;
