-- The queues of a pass that are worth a lock: not those that are paused, and of those with caps not the ones where nothing waits.
-- What is sent while we look wakes the worker again. Where this pass gave back a permit of a partition there is no looking: until it
-- commits, another pass counts that permit as held, and may park, unseen, a task that was sent meanwhile.
-- Locks: none. Index: horsies_tasks_claim.
CREATE FUNCTION horsies_live_v1(p_limits horsies_limits[], p_cluster int, p_freed text[], p_starting boolean, p_claiming boolean)
RETURNS horsies_limits[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_live horsies_limits[] := '{}';
  v_limit horsies_limits;
  v_partitioned boolean;
BEGIN
  FOREACH v_limit IN ARRAY p_limits LOOP
    CONTINUE WHEN v_limit.max_concurrency = 0;
    v_partitioned := v_limit.partition_max_concurrency IS NOT NULL OR v_limit.partition_local_limit IS NOT NULL;
    IF p_starting
      OR (p_cluster IS NULL AND v_limit.max_concurrency IS NULL AND NOT v_partitioned)
      OR (v_partitioned AND v_limit.queue_name = ANY (p_freed))
    THEN
      v_live := v_live || v_limit;
    ELSIF p_claiming AND EXISTS (
      SELECT FROM horsies_tasks t
      WHERE t.queue_name = v_limit.queue_name AND t.lane IN ('sync', 'async')
        AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked)
    THEN
      v_live := v_live || v_limit;
    END IF;
  END LOOP;
  RETURN v_live;
END
$$;
