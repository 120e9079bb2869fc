-- The first tasks of one queue and lane that could start now, in order (priority, enqueued_at, id), locked for the caller:
-- ``ids`` to start, ``late`` ones past their good_until, and ``due``, when the next becomes due if fewer than p_limit were found.
-- Walks priority by priority, so that tasks due in the future cost one probe however many they are.
-- Locks: the rows in ids and late, never waiting. Index: horsies_tasks_claim, in its order, no sort; the settings pin that plan.
CREATE FUNCTION horsies_candidates_v1(p_queue text, p_lane text, p_limit int, p_now timestamptz,
                                      OUT ids uuid[], OUT late uuid[], OUT due timestamptz)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_priority smallint := 0;
  v_ids uuid[];
  v_late uuid[];
  v_due timestamptz;
BEGIN
  ids := '{}';
  late := '{}';
  LOOP
    SELECT t.priority INTO v_priority FROM horsies_tasks t
    WHERE t.queue_name = p_queue AND t.lane = p_lane AND t.priority > v_priority
      AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
    ORDER BY t.priority LIMIT 1;
    EXIT WHEN NOT FOUND;

    SELECT array_agg(c.id) FILTER (WHERE c.good_until > p_now), array_agg(c.id) FILTER (WHERE c.good_until <= p_now)
    INTO v_ids, v_late
    FROM (
      SELECT t.id, coalesce(t.good_until, 'infinity') AS good_until FROM horsies_tasks t
      WHERE t.queue_name = p_queue AND t.lane = p_lane AND t.priority = v_priority AND t.enqueued_at <= p_now
        AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
      ORDER BY t.enqueued_at, t.id LIMIT p_limit - cardinality(ids) - cardinality(late) FOR NO KEY UPDATE SKIP LOCKED
    ) AS c;
    ids := ids || coalesce(v_ids, '{}');
    late := late || coalesce(v_late, '{}');
    EXIT WHEN cardinality(ids) + cardinality(late) >= p_limit;

    SELECT t.enqueued_at INTO v_due FROM horsies_tasks t
    WHERE t.queue_name = p_queue AND t.lane = p_lane AND t.priority = v_priority AND t.enqueued_at > p_now
      AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
    ORDER BY t.enqueued_at LIMIT 1;
    due := least(due, v_due);
  END LOOP;
END
$$;
