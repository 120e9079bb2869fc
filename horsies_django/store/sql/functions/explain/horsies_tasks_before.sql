-- Returns how many tasks of a queue and lane a pass would take before a place in the order (priority, enqueued_at, id), up to p_bound.
-- Only tasks count that are due, not late, not in the partitions p_but, and not left to others by p_taker (NULL: any worker). At most 2,000
-- tasks are read, as in a pass; if none of them counts, the result is one.
-- The scan goes from priority to priority, so tasks that are due in the future cost one probe per priority.
-- Locks: none. Index: horsies_tasks_claim, in its order, no sort.
CREATE FUNCTION horsies_tasks_before(p_limits horsies_limits, p_lane text, p_but text[], p_priority int, p_moment timestamptz, p_id uuid,
                               p_taker horsies_workers, p_grace interval, p_now timestamptz, p_bound int) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  c_looks CONSTANT int := 2000;
  v_priority smallint := 0;
  v_before int := 0;
  v_looked int := 0;
  v_some record;
BEGIN
  LOOP
    SELECT t.priority INTO v_priority FROM horsies_tasks t
    WHERE t.queue_name = p_limits.queue_name AND t.lane = p_lane AND t.priority > v_priority
      AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
    ORDER BY t.priority LIMIT 1;
    EXIT WHEN NOT FOUND OR v_priority > p_priority;

    SELECT count(*) AS looked, count(*) FILTER (WHERE s.starts) AS before INTO v_some
    FROM (
      SELECT coalesce(t.good_until > p_now, true)
             AND (p_but = '{}' OR coalesce(horsies_partition_key(
               p_limits.partition_by_args, p_limits.partition_by_task, t.kwargs, t.task_name, t.codec) <> ALL (p_but), true))
             AND NOT horsies_left_to_others(t.task_name, t.options, t.enqueued_at, t.good_until, p_taker, p_grace, p_now) AS starts
      FROM horsies_tasks t
      WHERE t.queue_name = p_limits.queue_name AND t.lane = p_lane AND t.priority = v_priority AND t.enqueued_at <= p_now
        AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
        AND (t.enqueued_at, t.id) < (CASE WHEN v_priority < p_priority THEN 'infinity' ELSE p_moment END, p_id)
      ORDER BY t.enqueued_at, t.id LIMIT c_looks - v_looked
    ) AS s;
    v_looked := v_looked + v_some.looked;
    v_before := v_before + v_some.before;
    IF v_looked >= c_looks THEN
      v_before := greatest(v_before, 1);
    END IF;
    EXIT WHEN v_before >= p_bound OR v_looked >= c_looks;
  END LOOP;
  RETURN least(v_before, p_bound);
END
$$;
