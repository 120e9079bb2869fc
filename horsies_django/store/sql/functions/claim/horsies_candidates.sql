-- Returns the first p_want claimable, due tasks of a queue and lane, in order (priority, enqueued_at, id), locked, as parallel arrays.
-- keys are the partitions under the rule in force; stale: the row has the key of an older rule; late: past its good_until. Tasks of the
-- partitions in p_but are left out; so are tasks that their run does not let start, and, with p_wanted.grace, tasks that p_wanted.taker does
-- not know and that have been due for less. due: when the next task becomes due, if fewer than p_want were found.
-- p_ranges: where to look, see horsies_first_waiting; NULL: everywhere. firsts: with p_ranges, the time of the first task of each priority
-- that was reached (at most now), and "end" if the scan reached the end. Tasks that another pass is claiming count, because they may come
-- back.
-- The scan goes from priority to priority, so tasks that are due in the future cost one probe per priority.
-- Locks: the returned rows, skipping locked ones. Index: horsies_tasks_claim, in its order, no sort.
CREATE FUNCTION horsies_candidates(p_wanted horsies_wanted, p_limits horsies_limits, p_lane text, p_want int, p_but text[], p_ranges jsonb,
                                   OUT ids uuid[], OUT priorities smallint[], OUT moments timestamptz[], OUT keys text[],
                                   OUT stale boolean[], OUT late boolean[], OUT due timestamptz, OUT firsts jsonb)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_priority smallint := 0;
  v_found int := 0;
  v_first timestamptz;
  v_some record;
  v_next timestamptz;
BEGIN
  firsts := '{}';
  LOOP
    IF p_ranges IS NULL THEN
      SELECT t.priority, t.enqueued_at INTO v_priority, v_first FROM horsies_tasks t
      WHERE t.queue_name = p_limits.queue_name AND t.lane = p_lane AND t.priority > v_priority
        AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
      ORDER BY t.priority, t.enqueued_at LIMIT 1;
      EXIT WHEN NOT FOUND;
    ELSE
      SELECT f.priority, f.moment INTO v_priority, v_first FROM horsies_first_waiting(p_limits.queue_name, p_lane, v_priority, p_ranges, p_wanted.behind) AS f;
      firsts := firsts || CASE WHEN v_priority IS NULL THEN '{"end": true}'
                            ELSE jsonb_build_object(v_priority, extract(epoch FROM least(v_first, p_wanted.now))) END;
      EXIT WHEN v_priority IS NULL;
    END IF;
    IF v_first > p_wanted.now THEN  -- none of this priority is due
      due := least(due, v_first);
      CONTINUE;
    END IF;

    SELECT array_agg(c.id) AS ids, array_agg(c.enqueued_at) AS moments, array_agg(c.stale) AS stale,
           array_agg(CASE WHEN c.stale THEN horsies_partition_key(p_limits.partition_by_args, p_limits.partition_by_task, c.kwargs, c.task_name, c.codec) ELSE c.partition_key END) AS keys,
           array_agg(coalesce(c.good_until <= p_wanted.now, false)) AS late
    INTO v_some
    FROM (
      SELECT t.id, t.enqueued_at, t.partition_key, t.kwargs, t.codec, t.task_name, t.good_until,
             t.partition_version IS DISTINCT FROM p_limits.partition_version AS stale
      FROM horsies_tasks t
      WHERE t.queue_name = p_limits.queue_name AND t.lane = p_lane AND t.priority = v_priority AND t.enqueued_at >= v_first AND t.enqueued_at <= p_wanted.now
        AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
        AND (p_but IS NULL OR t.partition_version IS DISTINCT FROM p_limits.partition_version OR coalesce(t.partition_key <> ALL (p_but), true))
        AND (p_wanted.grace IS NULL OR t.enqueued_at <= p_wanted.now - p_wanted.grace OR t.good_until <= p_wanted.now
             OR horsies_worker_knows(t.task_name, t.options, p_wanted.taker))
        AND (t.workflow_id IS NULL OR NOT EXISTS (SELECT FROM horsies_forbidding(t.workflow_id, t.node)))
      ORDER BY t.enqueued_at, t.id LIMIT p_want - v_found FOR NO KEY UPDATE SKIP LOCKED
    ) AS c;
    IF v_some.ids IS NOT NULL THEN
      v_found := v_found + cardinality(v_some.ids);
      ids := ids || v_some.ids;
      priorities := priorities || array_fill(v_priority, ARRAY[cardinality(v_some.ids)]);
      moments := moments || v_some.moments;
      keys := keys || v_some.keys;
      stale := stale || v_some.stale;
      late := late || v_some.late;
      EXIT WHEN v_found >= p_want;
    END IF;

    SELECT t.enqueued_at INTO v_next FROM horsies_tasks t
    WHERE t.queue_name = p_limits.queue_name AND t.lane = p_lane AND t.priority = v_priority AND t.enqueued_at > p_wanted.now
      AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
    ORDER BY t.enqueued_at LIMIT 1;
    due := least(due, v_next);
  END LOOP;
END
$$;
