-- Returns how many claimable tasks of some queues and a lane are due, at most p_most, without those that their run does not let start. The
-- first task of each priority is probed, so tasks that are due in the future cost one probe.
-- Locks: none. Index: horsies_tasks_claim, in its order, no sort.
CREATE FUNCTION horsies_count_due(p_lane text, p_queues text[], p_most int) RETURNS int LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_queue text;
  v_priority smallint;
  v_moment timestamptz;
  v_due int := 0;
BEGIN
  FOREACH v_queue IN ARRAY horsies_waiting_queues(p_queues) LOOP
    v_priority := 0;
    LOOP
      SELECT t.priority, t.enqueued_at INTO v_priority, v_moment FROM horsies_tasks t
      WHERE t.queue_name = v_queue AND t.lane = p_lane AND t.priority > v_priority
        AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
      ORDER BY t.priority, t.enqueued_at LIMIT 1;
      EXIT WHEN v_priority IS NULL;
      IF v_moment <= v_now THEN
        v_due := v_due + (SELECT count(*) FROM (
          SELECT FROM horsies_tasks t
          WHERE t.queue_name = v_queue AND t.lane = p_lane AND t.priority = v_priority AND t.enqueued_at <= v_now
            AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
            AND (t.workflow_id IS NULL OR NOT EXISTS (SELECT FROM horsies_forbidding(t.workflow_id, t.node))) LIMIT p_most - v_due) AS w);
        IF v_due >= p_most THEN
          RETURN v_due;
        END IF;
      END IF;
    END LOOP;
  END LOOP;
  RETURN v_due;
END
$$;
