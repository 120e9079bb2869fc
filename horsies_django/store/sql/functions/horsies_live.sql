-- live: the queues of a pass that are worth a lock: not those that are paused, and of those with caps not the ones where nothing waits in
-- the lanes that it claims for (p_lanes).
-- What is sent while we look wakes the worker again. Where this pass gave back a permit of a partition there is no looking: until it
-- commits, another pass counts that permit as held, and may park, unseen, a task that was sent meanwhile.
-- p_marks, p_behind: where tasks can be, see horsies_gather; firsts: as there, of the queues where nothing waits.
-- Locks: none. Index: horsies_tasks_claim.
CREATE FUNCTION horsies_live(p_limits horsies_limits[], p_cluster int, p_freed text[], p_starting boolean, p_lanes text[], p_marks jsonb,
                             p_behind timestamptz, OUT live horsies_limits[], OUT firsts jsonb) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_limit horsies_limits;
  v_partitioned boolean;
  v_marks jsonb;
  v_lane text;
  v_waits boolean;
BEGIN
  live := '{}';
  firsts := '{}';
  FOREACH v_limit IN ARRAY p_limits LOOP
    CONTINUE WHEN v_limit.max_concurrency = 0;
    v_partitioned := v_limit.partition_max_concurrency IS NOT NULL OR v_limit.partition_local_limit IS NOT NULL;
    IF p_starting
      OR (p_cluster IS NULL AND v_limit.max_concurrency IS NULL AND NOT v_partitioned)
      OR (v_partitioned AND v_limit.queue_name = ANY (p_freed))
    THEN
      live := live || v_limit;
      CONTINUE;
    END IF;
    v_marks := p_marks -> v_limit.queue_name;
    v_waits := false;
    FOREACH v_lane IN ARRAY p_lanes LOOP
      IF v_marks ? v_lane THEN
        v_waits := (horsies_first(v_limit.queue_name, v_lane, 0::smallint, v_marks -> v_lane, p_behind)).priority IS NOT NULL;
      ELSE
        v_waits := EXISTS (
          SELECT FROM horsies_tasks t
          WHERE t.queue_name = v_limit.queue_name AND t.lane = v_lane AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked);
      END IF;
      EXIT WHEN v_waits;
      IF v_marks IS NOT NULL THEN
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
