-- Returns how many claimable tasks of some queues and lanes are due, at most p_most, without tasks
-- whose run forbids their start. The first task of each priority is probed, so tasks that are due
-- in the future cost one probe.
-- Args: p_cursors, p_behind: see horsies_first_waiting.
-- Index: horsies_tasks_claim, in its order, no sort.
CREATE OR REPLACE FUNCTION horsies_count_due(
  p_queues text[], p_lanes text[], p_most int, p_cursors jsonb, p_behind timestamptz
) RETURNS int LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_queue text;
  v_lane text;
  v_first record;
  v_due int := 0;
BEGIN
  FOREACH v_queue IN ARRAY
    (horsies_waiting_queues(p_queues, p_lanes, p_cursors, p_behind)).names
  LOOP
    FOREACH v_lane IN ARRAY p_lanes LOOP
      v_first := horsies_first_waiting(v_queue, v_lane, 0::smallint, p_cursors, p_behind);
      WHILE v_first.priority IS NOT NULL LOOP
        IF v_first.moment <= v_now THEN
          v_due := v_due + (
            SELECT count(*)
            FROM (
              SELECT
              FROM horsies_tasks t
              WHERE t.queue_name = v_queue
                AND t.lane = v_lane
                AND t.priority = v_first.priority
                AND t.enqueued_at >= v_first.moment
                AND t.enqueued_at <= v_now
                AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
                AND (t.workflow_id IS NULL
                     OR NOT EXISTS (SELECT FROM horsies_forbidding(t.workflow_id, t.node)))
              LIMIT p_most - v_due
            ) AS w
          );
          IF v_due >= p_most THEN
            RETURN v_due;
          END IF;
        END IF;

        v_first := horsies_first_waiting(v_queue, v_lane, v_first.priority, p_cursors, p_behind);
      END LOOP;
    END LOOP;
  END LOOP;
  RETURN v_due;
END
$$;
