-- Returns the candidates of the queues of one priority (p_first to p_last in p_limits), in one order over queues and lanes.
-- Each queue and lane contributes as many as could start, and p_extra more after a round in which candidates were refused.
-- cuts: per candidate, the index of the last one of its scan if that scan may not have reached the end. due: when the next task becomes
-- due. firsts: by queue and lane, where the scans found their first tasks, for the queues in p_wanted.cursors.
-- A single scan is already in order; several are merged.
-- Locks: the candidates' rows, skipping locked ones. Index: horsies_tasks_claim.
CREATE FUNCTION horsies_gather_candidates(p_wanted horsies_wanted, p_limits horsies_limits[], p_rooms int[], p_first int, p_last int,
                                          p_but jsonb, p_extra int,
                                          OUT ids uuid[], OUT queues int[], OUT lanes text[], OUT keys text[], OUT stale boolean[],
                                          OUT late boolean[], OUT cuts int[], OUT due timestamptz, OUT firsts jsonb)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_limit horsies_limits;
  v_but text[];
  v_cursors jsonb;
  v_lane text;
  v_slots int;
  v_want int;
  v_count int;
  v_scans int := 0;
  v_scan record;
  v_priorities smallint[] := '{}';
  v_moments timestamptz[] := '{}';
BEGIN
  firsts := '{}';
  FOR v_queue IN p_first .. p_last LOOP
    CONTINUE WHEN p_rooms[v_queue] <= 0;
    v_limit := p_limits[v_queue];
    v_but := NULL;
    v_cursors := p_wanted.cursors -> v_limit.queue_name;
    IF p_but ? v_queue::text THEN
      v_but := ARRAY(SELECT jsonb_array_elements_text(p_but -> v_queue::text));
    END IF;
    FOREACH v_lane IN ARRAY ARRAY['sync', 'async'] LOOP
      v_slots := CASE v_lane WHEN 'sync' THEN p_wanted.sync + p_wanted.prefetch ELSE p_wanted.async END;
      CONTINUE WHEN v_slots <= 0;
      v_want := least(p_wanted.total, p_rooms[v_queue], v_slots) + p_extra;
      v_scan := horsies_candidates(p_wanted, v_limit, v_lane, v_want, v_but, CASE
        WHEN v_cursors IS NOT NULL THEN coalesce(v_cursors -> v_lane, '[{"low": 1, "high": 32767}]') END);
      IF v_cursors IS NOT NULL THEN
        firsts := firsts || jsonb_build_object(
          v_limit.queue_name, coalesce(firsts -> v_limit.queue_name, '{}') || jsonb_build_object(v_lane, v_scan.firsts));
      END IF;
      due := least(due, v_scan.due);
      v_count := cardinality(v_scan.ids);
      CONTINUE WHEN v_count IS NULL;
      v_scans := v_scans + 1;
      ids := ids || v_scan.ids;
      v_priorities := v_priorities || v_scan.priorities;
      v_moments := v_moments || v_scan.moments;
      keys := keys || v_scan.keys;
      stale := stale || v_scan.stale;
      late := late || v_scan.late;
      queues := queues || array_fill(v_queue, ARRAY[v_count]);
      lanes := lanes || array_fill(v_lane, ARRAY[v_count]);
      cuts := cuts || array_fill(CASE WHEN v_count >= v_want THEN v_count END, ARRAY[v_count]);
    END LOOP;
  END LOOP;
  IF v_scans > 1 THEN
    SELECT array_agg(m.id), array_agg(m.queue), array_agg(m.lane), array_agg(m.key), array_agg(m.stale), array_agg(m.late),
           array_agg(CASE WHEN m.cut IS NOT NULL THEN m.last END)
    INTO ids, queues, lanes, keys, stale, late, cuts
    FROM (
      SELECT p.*, max(p.place) OVER (PARTITION BY p.queue, p.lane)::int AS last
      FROM (
        SELECT u.*, row_number() OVER (ORDER BY u.priority, u.moment, u.id) AS place
        FROM unnest(ids, queues, lanes, keys, stale, late, cuts, v_priorities, v_moments)
          AS u (id, queue, lane, key, stale, late, cut, priority, moment)
      ) AS p ORDER BY p.place
    ) AS m;
  END IF;
END
$$;
