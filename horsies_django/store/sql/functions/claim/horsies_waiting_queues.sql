-- Returns the names of the queues in p_queues that have claimable tasks in some lanes, due or not.
-- A task that is sent after this wakes the worker again.
-- Of many queues it leaps through the index from one with tasks (of any lane) to the next, so a
-- queue without tasks costs nothing. If it meets more queues than p_queues has, the others are
-- those of other workers, and it probes each queue in p_queues instead.
-- Args: p_cursors, p_behind: see horsies_first_waiting.
-- Returns: names, and firsts: as in horsies_candidates, for queues in p_cursors that have no such
-- task.
-- Index: horsies_tasks_claim, in its order, no sort.
CREATE OR REPLACE FUNCTION horsies_waiting_queues(
  p_queues text[], p_lanes text[], p_cursors jsonb, p_behind timestamptz,
  OUT names text[], OUT firsts jsonb
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  c_few CONSTANT int := 8;
  v_queue text := '';
  v_ended jsonb;
BEGIN
  names := '{}';
  firsts := '{}';

  IF p_cursors IS NULL AND cardinality(p_queues) > c_few THEN
    FOR i IN 0 .. cardinality(p_queues) LOOP
      SELECT t.queue_name
      INTO v_queue
      FROM horsies_tasks t
      WHERE t.queue_name > v_queue
        AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
      ORDER BY t.queue_name
      LIMIT 1;

      IF NOT FOUND THEN
        RETURN;
      ELSIF v_queue = ANY (p_queues) THEN
        names := names || v_queue;
      END IF;
    END LOOP;
  END IF;

  IF p_cursors IS NULL THEN
    names := ARRAY(
      SELECT queue.name
      FROM unnest(p_queues) AS queue (name)
      CROSS JOIN LATERAL (  -- an EXISTS may become a join that reads all tasks that wait
        SELECT
        FROM unnest(p_lanes) AS wanted_lane (lane)
        CROSS JOIN LATERAL (  -- so may = ANY, before PostgreSQL 17
          SELECT
          FROM horsies_tasks task
          WHERE task.queue_name = queue.name
            AND task.lane = wanted_lane.lane
            AND task.claimed_by IS NULL AND task.finished_at IS NULL AND NOT task.parked
          LIMIT 1
        ) AS waiting_task
        LIMIT 1
      ) AS waiting_lane);
    RETURN;
  END IF;

  v_ended := (
    SELECT jsonb_object_agg(l.lane, '{"end": true}'::jsonb) FROM unnest(p_lanes) AS l (lane));
  FOREACH v_queue IN ARRAY p_queues LOOP
    IF EXISTS (
      SELECT
      FROM unnest(p_lanes) AS l (lane)
      WHERE (
        horsies_first_waiting(v_queue, l.lane, 0::smallint, p_cursors, p_behind)
      ).priority IS NOT NULL
    ) THEN
      names := names || v_queue;
    ELSIF p_cursors ? v_queue THEN
      firsts := firsts || jsonb_build_object(v_queue, v_ended);
    END IF;
  END LOOP;
END
$$;
