-- Returns the queues that need their caps locked (live): not paused ones, and of those with caps only those with waiting tasks in the lanes
-- to claim for.
-- A task that is sent after this check wakes the worker again. A queue for which this pass freed a permit of a partition is always live:
-- until the commit, other passes count that permit as held and may park a new task, which this check would not see.
-- firsts: as in horsies_gather_candidates, for the queues without waiting tasks.
-- Locks: none. Index: horsies_tasks_claim.
CREATE FUNCTION horsies_claimable_queues(p_wanted horsies_wanted, p_caps horsies_caps, p_freed text[], p_starting boolean,
                                         OUT live horsies_limits[], OUT firsts jsonb) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_lanes text[] := CASE
    WHEN p_wanted.prefetch > 0 OR (p_wanted.sync > 0 AND p_wanted.async > 0) THEN '{sync,async}' WHEN p_wanted.sync > 0 THEN '{sync}'
    WHEN p_wanted.async > 0 THEN '{async}' ELSE '{}' END;
  v_limit horsies_limits;
  v_partitioned boolean;
  v_cursors jsonb;
  v_lane text;
  v_waits boolean;
BEGIN
  live := '{}';
  firsts := '{}';
  FOREACH v_limit IN ARRAY p_caps.queues LOOP
    CONTINUE WHEN v_limit.max_concurrency = 0;
    v_partitioned := v_limit.partition_max_concurrency IS NOT NULL OR v_limit.partition_local_limit IS NOT NULL;
    IF p_starting
      OR (p_caps.cluster IS NULL AND v_limit.max_concurrency IS NULL AND NOT v_partitioned)
      OR (v_partitioned AND v_limit.queue_name = ANY (p_freed))
    THEN
      live := live || v_limit;
      CONTINUE;
    END IF;
    v_cursors := p_wanted.cursors -> v_limit.queue_name;
    v_waits := false;
    FOREACH v_lane IN ARRAY v_lanes LOOP
      IF v_cursors ? v_lane THEN
        v_waits := (horsies_first_waiting(v_limit.queue_name, v_lane, 0::smallint, v_cursors -> v_lane, p_wanted.behind)).priority IS NOT NULL;
      ELSE
        v_waits := EXISTS (
          SELECT FROM horsies_tasks t
          WHERE t.queue_name = v_limit.queue_name AND t.lane = v_lane AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked);
      END IF;
      EXIT WHEN v_waits;
      IF v_cursors IS NOT NULL THEN
        firsts := firsts || jsonb_build_object(
          v_limit.queue_name, coalesce(firsts -> v_limit.queue_name, '{}') || jsonb_build_object(v_lane, '{"end": true}'::jsonb));
      END IF;
    END LOOP;
    IF v_waits THEN
      live := live || v_limit;
    END IF;
  END LOOP;
END
$$;
