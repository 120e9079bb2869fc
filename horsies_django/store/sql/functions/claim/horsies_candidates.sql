-- Returns the claimable, due tasks of the queues of one priority, in one order (priority,
-- enqueued_at, id) over queues and lanes, without a verdict. Each queue and lane is one scan, for
-- as many tasks as could start, and p_extra more after a round in which candidates were refused. A
-- scan goes from priority to priority, so tasks that are due in the future cost one probe per
-- priority.
-- Left out are tasks of the partitions in p_but, tasks whose run forbids their start, and, with
-- p_wanted.grace, tasks that p_wanted.taker cannot run, if they have been due for less than that
-- and are not late.
-- Args:
--   p_first, p_last: the first and the last queue of the priority, as indexes in p_limits.
--   p_but: partitions, by the index of their queue.
-- Returns:
--   cuts: queue and lane of each scan that may not have reached the end.
--   stale: whether a candidate is.
--   due: when the next task becomes due, if its scan found too few.
--   firsts: by queue and lane, for queues in p_wanted.cursors, the time of the first task of each
--     priority that was reached (at most now), and "end" if the scan reached the end. Tasks that
--     another pass is claiming count, because they may come back.
--   size: about the most bytes that the arguments of all candidates can have, see
--     horsies_most_bytes.
-- Locks: the candidates' rows, skipping locked ones.
-- Index: horsies_tasks_claim, in its order, no sort.
CREATE OR REPLACE FUNCTION horsies_candidates(
  p_wanted horsies_wanted, p_limits horsies_limits[], p_rooms int[], p_first int, p_last int,
  p_but jsonb, p_extra int,
  OUT candidates horsies_candidate[], OUT cuts text[], OUT stale boolean, OUT due timestamptz,
  OUT firsts jsonb, OUT size bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_limits horsies_limits;
  v_but text[];
  v_lane text;
  v_want int;
  v_left int;
  v_first record;
  v_firsts jsonb;
  v_some record;
  v_next timestamptz;
  v_scans int := 0;
BEGIN
  stale := false;
  firsts := '{}';
  size := 0;

  FOR v_queue IN p_first .. p_last LOOP
    CONTINUE WHEN p_rooms[v_queue] <= 0;

    v_limits := p_limits[v_queue];
    v_but := '{}';
    IF p_but ? v_queue::text THEN
      v_but := ARRAY(SELECT jsonb_array_elements_text(p_but -> v_queue::text));
    END IF;

    FOREACH v_lane IN ARRAY '{sync,async}'::text[] LOOP
      v_want := least(
        p_wanted.total,
        p_rooms[v_queue],
        CASE v_lane WHEN 'sync' THEN p_wanted.sync + p_wanted.prefetch ELSE p_wanted.async END);
      CONTINUE WHEN v_want <= 0;

      v_left := v_want + p_extra;
      v_firsts := '{}';
      v_first := horsies_first_waiting(
        v_limits.queue_name, v_lane, 0::smallint, p_wanted.cursors, p_wanted.behind);
      WHILE v_first.priority IS NOT NULL LOOP
        IF p_wanted.cursors ? v_limits.queue_name THEN
          v_firsts := v_firsts || jsonb_build_object(
            v_first.priority,
            extract(epoch FROM horsies_known_time(least(v_first.moment, p_wanted.now))));
        END IF;

        IF v_first.moment > p_wanted.now THEN  -- none of this priority is due
          due := least(due, v_first.moment);
        ELSE
          SELECT
            array_agg(ROW(
              c.id, v_queue, v_lane, v_first.priority, c.enqueued_at,
              CASE WHEN c.stale
                THEN horsies_partition_key(
                  v_limits.partition_by_args, v_limits.partition_by_task,
                  c.kwargs, c.task_name, c.codec)
                ELSE c.partition_key
              END,
              c.stale, c.late, ''
            )::horsies_candidate) AS rows,
            count(*)::int AS many,
            coalesce(bool_or(c.stale), false) AS stale,
            coalesce(sum(c.size), 0) AS size
          INTO v_some
          FROM (
            SELECT
              t.id, t.enqueued_at, t.partition_key, t.kwargs, t.codec, t.task_name,
              horsies_most_bytes(t.kwargs) AS size,
              t.partition_version IS DISTINCT FROM v_limits.partition_version AS stale,
              coalesce(t.good_until <= p_wanted.now, false) AS late
            FROM horsies_tasks t
            WHERE t.queue_name = v_limits.queue_name
              AND t.lane = v_lane
              AND t.priority = v_first.priority
              AND t.enqueued_at >= v_first.moment
              AND t.enqueued_at <= p_wanted.now
              AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
              AND (t.partition_version IS DISTINCT FROM v_limits.partition_version
                   OR coalesce(t.partition_key <> ALL (v_but), true))
              AND (p_wanted.grace IS NULL
                   OR t.enqueued_at <= p_wanted.now - p_wanted.grace
                   OR t.good_until <= p_wanted.now
                   OR horsies_worker_knows(t.task_name, t.options, p_wanted.taker))
              AND (t.workflow_id IS NULL
                   OR NOT EXISTS (SELECT FROM horsies_forbidding(t.workflow_id, t.node)))
            ORDER BY t.enqueued_at, t.id
            LIMIT v_left
            FOR NO KEY UPDATE SKIP LOCKED
          ) AS c;

          candidates := candidates || v_some.rows;
          stale := stale OR v_some.stale;
          size := size + v_some.size;
          v_left := v_left - v_some.many;
          EXIT WHEN v_left <= 0;

          SELECT t.enqueued_at
          INTO v_next
          FROM horsies_tasks t
          WHERE t.queue_name = v_limits.queue_name
            AND t.lane = v_lane
            AND t.priority = v_first.priority
            AND t.enqueued_at > p_wanted.now
            AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
          ORDER BY t.enqueued_at
          LIMIT 1;

          due := least(due, v_next);
        END IF;

        v_first := horsies_first_waiting(
          v_limits.queue_name, v_lane, v_first.priority, p_wanted.cursors, p_wanted.behind);
      END LOOP;

      IF v_left < v_want + p_extra THEN
        v_scans := v_scans + 1;
      END IF;
      IF v_left <= 0 THEN
        cuts := cuts || (v_queue || v_lane);
      END IF;
      IF p_wanted.cursors ? v_limits.queue_name THEN
        IF v_left > 0 THEN
          v_firsts := v_firsts || '{"end": true}';
        END IF;
        firsts := firsts || jsonb_build_object(
          v_limits.queue_name,
          coalesce(firsts -> v_limits.queue_name, '{}') || jsonb_build_object(v_lane, v_firsts));
      END IF;
    END LOOP;
  END LOOP;

  IF v_scans > 1 THEN
    candidates := ARRAY(
      SELECT c FROM unnest(candidates) AS c ORDER BY c.priority, c.enqueued_at, c.id);
  END IF;
END
$$;
