-- Claims due tasks for the free slots of each lane and starts them, and prefetches some (soft mode).
-- Moves PENDING -> RUNNING, CLAIMED under a new claim generation (1 follows the highest number). Late tasks expire, and tasks of a
-- partition that is full for every worker are parked; both leave the index of claimable tasks.
-- Queues come in order of their priority; the tasks of queues with the same priority share one order. Each priority is read in rounds,
-- because refused candidates may hide others beyond the end of a scan. Permits in p_freed that this claim does not use are offered to other
-- workers.
-- p_rooms: the room of each queue in p_caps. claims: of the kinds 'start', 'prefetch' and 'late'; late: whether there are any of these. due:
-- when the next task becomes due. limited: a cap or the total left tasks behind. again: the pass became long, another one should follow.
-- firsts: see horsies_gather_candidates.
-- Locks: the task rows, skipping locked ones; the caller holds the advisory locks. Index: horsies_tasks_claim, then the primary key.
CREATE FUNCTION horsies_claim(p_wanted horsies_wanted, p_caps horsies_caps, p_rooms int[], p_freed text[],
                              OUT claims horsies_passed[], OUT late boolean, OUT due timestamptz, OUT limited boolean, OUT again boolean,
                              OUT firsts jsonb)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_limits horsies_limits[] := p_caps.queues;
  v_first int := 1;
  v_last int := 0;
  v_extra int;
  v_met int := 0;
  v_but jsonb;
  v_ids uuid[];
  v_queues int[];
  v_lanes text[];
  v_keys text[];
  v_late boolean[];
  v_count int;
  v_found record;
  v_used text[] := '{}';
  v_part record;
  v_verdicts text[];
  v_stopped boolean;
  v_partitioned boolean;
  v_expired uuid[];
BEGIN
  late := false;
  limited := false;
  again := false;
  firsts := '{}';
  WHILE v_first <= cardinality(v_limits) AND p_wanted.total > 0
    AND (p_wanted.sync > 0 OR p_wanted.async > 0 OR p_wanted.prefetch > 0)
  LOOP
    v_last := v_first;
    v_partitioned := false;
    FOR i IN v_first .. cardinality(v_limits) LOOP
      EXIT WHEN v_limits[i].priority <> v_limits[v_first].priority;
      v_last := i;
      v_partitioned := v_partitioned OR v_limits[i].partition_max_concurrency IS NOT NULL
        OR v_limits[i].partition_local_limit IS NOT NULL;
    END LOOP;
    v_but := '{}';
    v_extra := 0;
    LOOP
      v_found := horsies_gather_candidates(p_wanted, v_limits, p_rooms, v_first, v_last, v_but, v_extra);
      firsts := firsts || v_found.firsts;
      due := least(due, v_found.due);
      v_ids := v_found.ids;
      EXIT WHEN v_ids IS NULL;
      v_queues := v_found.queues;
      v_lanes := v_found.lanes;
      v_late := v_found.late;
      v_count := cardinality(v_ids);

      IF v_first = v_last AND NOT v_partitioned AND p_wanted.prefetch = 0 AND v_count <= least(p_wanted.total, p_rooms[v_first])
        AND v_extra = 0 AND NOT true = ANY (v_late) THEN  -- the common case: no more candidates than slots, and each can start
        v_verdicts := array_fill('start'::text, ARRAY[v_count]);
        v_stopped := false;
        v_used := v_used || array_fill(v_limits[v_first].queue_name::text, ARRAY[v_count]);
        p_wanted.total := p_wanted.total - v_count;
        p_rooms[v_first] := p_rooms[v_first] - v_count;
        p_wanted.sync := p_wanted.sync - cardinality(array_positions(v_lanes, 'sync'));
        p_wanted.async := p_wanted.async - cardinality(array_positions(v_lanes, 'async'));
      ELSE
        v_keys := v_found.keys;
        SELECT NULL::int[] AS parts, NULL::int[] AS rooms, NULL::int[] AS everyone INTO v_part;
        IF v_partitioned THEN
          v_part := horsies_partition_capacity(v_limits, v_queues, v_keys, p_wanted.worker, p_wanted.lease IS NULL, p_wanted.now);
          IF true = ANY (v_found.stale) THEN
            UPDATE horsies_tasks t SET partition_key = c.key, partition_version = v_limits[c.queue].partition_version
            FROM unnest(v_ids, v_queues, v_keys, v_found.stale) AS c (id, queue, key, stale) WHERE c.stale AND t.id = c.id;
          END IF;
        END IF;
        SELECT a.p_rooms, a.p_total, a.p_sync, a.p_async, a.p_prefetch, a.verdicts, a.stopped
        INTO p_rooms, p_wanted.total, p_wanted.sync, p_wanted.async, p_wanted.prefetch, v_verdicts, v_stopped
        FROM horsies_allot(v_queues, v_lanes, v_part.parts, v_late, v_found.cuts, v_part.everyone,
                           p_rooms, v_part.rooms, p_wanted.total, p_wanted.sync, p_wanted.async, p_wanted.prefetch) AS a;
        v_used := v_used || ARRAY(SELECT v_limits[u.queue].queue_name::text FROM unnest(v_queues, v_verdicts) AS u (queue, verdict)
                                  WHERE u.verdict = 'start');
      END IF;

      WITH taken AS (
        UPDATE horsies_tasks t
        SET status = CASE v.verdict WHEN 'start' THEN 'RUNNING' ELSE 'CLAIMED' END, claimed_by = p_wanted.worker, claimed_at = p_wanted.now,
            started_at = CASE v.verdict WHEN 'start' THEN p_wanted.now END,
            claim_expires_at = CASE v.verdict WHEN 'prefetch' THEN p_wanted.now + p_wanted.lease END,
            claim_generation = t.claim_generation % 2147483647 + 1
        FROM unnest(v_ids, v_verdicts) WITH ORDINALITY AS v (id, verdict, place)
        WHERE t.id = v.id AND v.verdict IN ('start', 'prefetch') AND t.status = 'PENDING'
        RETURNING v.place, v.verdict, t AS task
      )
      SELECT claims || array_agg(r ORDER BY c.place) INTO claims FROM taken c CROSS JOIN LATERAL horsies_claimed(c.verdict, c.task) AS r;
      v_met := v_met + v_count;

      IF 'late' = ANY (v_verdicts) THEN
        v_expired := horsies_expire(
          ARRAY(SELECT u.id FROM unnest(v_ids, v_verdicts) AS u (id, verdict) WHERE u.verdict = 'late'), p_wanted.now, p_wanted.channel);
        late := true;
        SELECT claims || array_agg(r) INTO claims
        FROM horsies_tasks t CROSS JOIN LATERAL horsies_claimed('late', t) AS r WHERE t.id = ANY (v_expired);
        IF v_partitioned THEN  -- an expired task may have been unparked for a free permit
          SELECT v_stopped OR coalesce(sum(horsies_unpark(v_limits[e.queue].queue_name, e.keys, e.permits)) > 0, false) INTO v_stopped
          FROM (SELECT k.queue, array_agg(k.key) AS keys, array_agg(k.permits) AS permits
                FROM (SELECT u.queue, u.key, count(*)::int AS permits FROM unnest(v_queues, v_keys, v_verdicts) AS u (queue, key, verdict)
                      WHERE u.verdict = 'late' AND u.key IS NOT NULL GROUP BY u.queue, u.key) AS k GROUP BY k.queue) AS e;
        END IF;
      END IF;
      IF 'park' = ANY (v_verdicts) THEN
        UPDATE horsies_tasks t SET parked = true
        WHERE t.id = ANY (ARRAY(SELECT u.id FROM unnest(v_ids, v_verdicts) AS u (id, verdict) WHERE u.verdict = 'park'));
        limited := true;
      END IF;
      IF 'here' = ANY (v_verdicts) THEN
        SELECT v_but || jsonb_object_agg(h.queue, coalesce(v_but -> h.queue::text, '[]') || h.keys) INTO v_but
        FROM (SELECT u.queue, jsonb_agg(DISTINCT u.key) AS keys FROM unnest(v_queues, v_keys, v_verdicts) AS u (queue, key, verdict)
              WHERE u.verdict = 'here' GROUP BY u.queue) AS h;
        limited := true;
      END IF;
      EXIT WHEN NOT v_stopped OR p_wanted.total <= 0;
      IF v_met >= 2000 THEN  -- keeps the pass short; the engine runs another one
        again := true;
        p_wanted.total := 0;
        EXIT;
      END IF;
      v_extra := least(greatest(v_extra * 5, 20), 500);
    END LOOP;
    v_first := v_last + 1;
  END LOOP;
  limited := limited OR p_wanted.total <= 0 OR 0 = ANY (p_rooms);
  IF p_freed <> '{}' THEN
    PERFORM horsies_notify_capacity(p_wanted, p_caps, p_freed, v_used);
  END IF;
END
$$;
