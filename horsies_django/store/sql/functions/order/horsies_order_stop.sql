-- Returns the order_stop of a task that ends as FAILED: the policy of its queue, if this stops or
-- cancels the tasks that come after it; else NULL.
CREATE OR REPLACE FUNCTION horsies_order_stop(p_task horsies_tasks) RETURNS text
LANGUAGE sql STABLE AS $$
  SELECT l.partition_policy
  FROM horsies_limits l
  WHERE p_task.ordered
    AND l.queue_name = p_task.queue_name
    AND l.partition_policy IN ('stop', 'cancel')
$$;
