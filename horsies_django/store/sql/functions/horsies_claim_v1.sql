-- Claim: take due tasks for the free slots of each lane and start them; expire the ones met too late.
-- Moves PENDING -> RUNNING under a new claim generation (a claim is made only for a free slot, so it is a start as well),
-- and PENDING -> EXPIRED. Queues come in the order of the priority that serves them; queues of one priority share one order.
-- Returns rows of three kinds: 'claimed', 'expired', and 'due' with the seconds until the next task becomes due.
-- Locks: the task rows, never waiting. Index: horsies_tasks_claim, then the primary key.
CREATE FUNCTION horsies_claim_v1(p_worker uuid, p_queues text[], p_priorities int[], p_sync int, p_async int)
RETURNS TABLE (kind text, id uuid, generation int, lane text, task_name text, kwargs text, seconds float8)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_lane text;
  v_free int;
  v_room int;
  v_queue int;
  v_first int;
  v_found record;
  v_picked uuid[];
  v_next timestamptz;
  v_claimed uuid[] := '{}';
  v_expired uuid[] := '{}';
BEGIN
  FOREACH v_lane IN ARRAY ARRAY['sync', 'async'] LOOP
    v_free := CASE v_lane WHEN 'sync' THEN p_sync ELSE p_async END;
    v_queue := 1;
    WHILE v_free > 0 AND v_queue <= cardinality(p_queues) LOOP
      v_first := v_queue;
      v_picked := '{}';
      WHILE v_queue <= cardinality(p_queues) AND p_priorities[v_queue] = p_priorities[v_first] LOOP
        v_room := v_free;
        LOOP  -- again while expired tasks stand in front, each round with more room for them
          v_found := horsies_candidates_v1(p_queues[v_queue], v_lane, v_room, v_now);
          EXIT WHEN v_found.late = '{}';
          UPDATE horsies_tasks t
          SET status = 'EXPIRED', finished_at = v_now, error_code = 'TASK_EXPIRED',
              result = jsonb_build_object('err', jsonb_build_object('error_code', 'TASK_EXPIRED', 'data', NULL,
                'exception', NULL, 'message', 'the task was not started before its good_until'))
          WHERE t.id = ANY (v_found.late) AND t.status = 'PENDING';
          v_expired := v_expired || v_found.late;
          EXIT WHEN cardinality(v_expired) >= 2000;  -- a pass stays short; the engine comes round again
          v_room := v_room + 500;
        END LOOP;
        v_next := least(v_next, v_found.due);
        v_picked := v_picked || v_found.ids;
        v_queue := v_queue + 1;
      END LOOP;
      IF v_queue - v_first > 1 THEN
        SELECT array_agg(t.id ORDER BY t.priority, t.enqueued_at, t.id) INTO v_picked
        FROM horsies_tasks t WHERE t.id = ANY (v_picked);
      END IF;
      v_picked := coalesce(v_picked[:v_free], '{}');
      v_free := v_free - cardinality(v_picked);
      v_claimed := v_claimed || v_picked;
    END LOOP;
  END LOOP;

  IF v_claimed <> '{}' THEN
    RETURN QUERY
    WITH claimed AS (
      UPDATE horsies_tasks t
      SET status = 'RUNNING', claimed_by = p_worker, claimed_at = v_now, started_at = v_now,
          claim_generation = t.claim_generation + 1
      WHERE t.id = ANY (v_claimed) AND t.status = 'PENDING'
      RETURNING t.id, t.claim_generation, t.lane, t.task_name, t.kwargs
    )
    SELECT 'claimed', c.id, c.claim_generation, c.lane::text, c.task_name::text, c.kwargs::text, NULL::float8
    FROM unnest(v_claimed) WITH ORDINALITY AS picked (id, place) JOIN claimed c ON c.id = picked.id ORDER BY picked.place;
  END IF;
  IF v_expired <> '{}' THEN
    RETURN QUERY SELECT 'expired', e.id, NULL::int, NULL, NULL, NULL, NULL::float8 FROM unnest(v_expired) AS e (id);
  END IF;
  IF v_next IS NOT NULL THEN
    RETURN QUERY SELECT 'due', NULL::uuid, NULL::int, NULL, NULL, NULL, extract(epoch FROM v_next - clock_timestamp())::float8;
  END IF;
END
$$;
