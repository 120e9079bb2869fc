-- Returns whether a queue has a claimable task that is due and that its run lets start. It reads the first such task of each lane and
-- priority, so tasks that are due in the future cost one probe.
-- Locks: none. Index: horsies_tasks_claim, in its order, no sort.
CREATE FUNCTION horsies_has_waiting_task(p_wanted horsies_wanted, p_queue text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_cursors jsonb := p_wanted.cursors -> p_queue;
  v_lane text;
  v_priority smallint;
  v_moment timestamptz;
BEGIN
  FOREACH v_lane IN ARRAY ARRAY['sync', 'async'] LOOP
    v_priority := 0;
    LOOP
      IF v_cursors ? v_lane THEN
        SELECT f.priority, f.moment INTO v_priority, v_moment FROM horsies_first_waiting(p_queue, v_lane, v_priority, v_cursors -> v_lane, p_wanted.behind) AS f;
      ELSE
        SELECT t.priority, t.enqueued_at INTO v_priority, v_moment FROM horsies_tasks t
        WHERE t.queue_name = p_queue AND t.lane = v_lane AND t.priority > v_priority
          AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
          AND (t.workflow_id IS NULL OR NOT EXISTS (SELECT FROM horsies_forbidding(t.workflow_id, t.node)))
        ORDER BY t.priority, t.enqueued_at LIMIT 1;
      END IF;
      EXIT WHEN v_priority IS NULL;
      IF v_moment <= v_now THEN
        RETURN true;
      END IF;
    END LOOP;
  END LOOP;
  RETURN false;
END
$$;
