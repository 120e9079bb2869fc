-- Claim: take due tasks for the free slots of each lane and start them, and take some ahead for the buffer (soft mode).
-- Moves PENDING -> RUNNING, CLAIMED under a new claim generation (after the last number comes 1: a row that stands there must not make
-- every claim fail, and no claim lives that long). Tasks met past their good_until expire, tasks of a
-- partition that is full for every worker are parked: both leave the index of claimable tasks, so nobody meets them again.
-- Queues come in the order of their priority; queues of one priority share one order. The candidates of a priority are looked at in
-- rounds: a round ends early when refused candidates may have hidden others behind the end of a scan.
-- p_taker, p_grace: leave out what this worker cannot run while it is younger than that; NULL: take everything.
-- p_marks, p_behind: where the scans begin, see horsies_gather; where they came by is told for the next pass.
-- What p_freed of a cap's permits it does not use itself is offered to other workers.
-- Kinds: 'claimed' and 'buffered' tasks with their place in the order, 'expired' ones, 'due' with the seconds until the next becomes
-- due, 'limited' when a cap left tasks behind, 'again' when the pass grew long and another should follow, 'firsts' with a JSON text of
-- where the scans found something first.
-- Locks: the task rows, never waiting; the caller has the advisory locks. Index: horsies_tasks_claim, then the primary key.
CREATE FUNCTION horsies_claim(p_worker uuid, p_channel text, p_limits horsies_limits[], p_cluster int, p_freed text[], p_rooms int[],
                              p_now timestamptz, p_taker horsies_workers, p_grace interval, p_lease interval, p_marks jsonb, p_behind timestamptz,
                              p_total int, p_sync int, p_async int, p_buffer int)
RETURNS TABLE (kind text, id uuid, generation int, lane text, task_name text, kwargs text, attempt int, options text, number float8,
               queue_name text)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_first int := 1;
  v_last int := 0;
  v_extra int;
  v_met int := 0;
  v_but jsonb;
  v_limited boolean := false;
  v_due timestamptz;
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
  v_start uuid[];
  v_ahead uuid[];
  v_stopped boolean;
  v_partitioned boolean;
  v_expired uuid[];
  v_firsts jsonb := '{}';
BEGIN
  WHILE v_first <= cardinality(p_limits) AND p_total > 0 AND (p_sync > 0 OR p_async > 0 OR p_buffer > 0) LOOP
    v_last := v_first;
    v_partitioned := false;
    FOR i IN v_first .. cardinality(p_limits) LOOP
      EXIT WHEN p_limits[i].priority <> p_limits[v_first].priority;
      v_last := i;
      v_partitioned := v_partitioned OR p_limits[i].partition_max_concurrency IS NOT NULL
        OR p_limits[i].partition_local_limit IS NOT NULL;
    END LOOP;
    v_but := '{}';
    v_extra := 0;
    LOOP
      v_found := horsies_gather(p_limits, p_rooms, v_first, v_last, v_but, v_extra, p_now, p_taker, p_grace, p_marks, p_behind,
                                p_total, p_sync, p_async, p_buffer);
      v_firsts := v_firsts || v_found.firsts;
      v_due := least(v_due, v_found.due);
      v_ids := v_found.ids;
      EXIT WHEN v_ids IS NULL;
      v_queues := v_found.queues;
      v_lanes := v_found.lanes;
      v_late := v_found.late;
      v_count := cardinality(v_ids);

      IF v_first = v_last AND NOT v_partitioned AND p_buffer = 0 AND v_count <= least(p_total, p_rooms[v_first])
        AND NOT true = ANY (v_late) THEN  -- the common case: every candidate has a slot, and room
        v_verdicts := '{}';
        v_stopped := false;
        v_start := v_ids;
        v_ahead := '{}';
        v_used := v_used || array_fill(p_limits[v_first].queue_name::text, ARRAY[v_count]);
        p_total := p_total - v_count;
        p_rooms[v_first] := p_rooms[v_first] - v_count;
        p_sync := p_sync - cardinality(array_positions(v_lanes, 'sync'));
        p_async := p_async - cardinality(array_positions(v_lanes, 'async'));
      ELSE
        v_keys := v_found.keys;
        SELECT NULL::int[] AS parts, NULL::int[] AS rooms, NULL::int[] AS everyone INTO v_part;
        IF v_partitioned THEN
          v_part := horsies_parts(p_limits, v_queues, v_keys, p_worker, p_lease IS NULL, p_now);
          IF true = ANY (v_found.stale) THEN
            UPDATE horsies_tasks t SET partition_key = c.key, partition_version = p_limits[c.queue].partition_version
            FROM unnest(v_ids, v_queues, v_keys, v_found.stale) AS c (id, queue, key, stale) WHERE c.stale AND t.id = c.id;
          END IF;
        END IF;
        SELECT a.p_rooms, a.p_total, a.p_sync, a.p_async, a.p_buffer, a.verdicts, a.stopped
        INTO p_rooms, p_total, p_sync, p_async, p_buffer, v_verdicts, v_stopped
        FROM horsies_allot(v_queues, v_lanes, v_part.parts, v_late, v_found.cuts, v_part.everyone,
                           p_rooms, v_part.rooms, p_total, p_sync, p_async, p_buffer) AS a;
        v_start := ARRAY(SELECT u.id FROM unnest(v_ids, v_verdicts) AS u (id, verdict) WHERE u.verdict = 'start');
        v_ahead := ARRAY(SELECT u.id FROM unnest(v_ids, v_verdicts) AS u (id, verdict) WHERE u.verdict = 'buffer');
        v_used := v_used || ARRAY(SELECT p_limits[u.queue].queue_name::text FROM unnest(v_queues, v_verdicts) AS u (queue, verdict)
                                  WHERE u.verdict = 'start');
      END IF;

      RETURN QUERY
      UPDATE horsies_tasks t
      SET status = 'RUNNING', claimed_by = p_worker, claimed_at = p_now, started_at = p_now, claim_generation = t.claim_generation % 2147483647 + 1
      FROM unnest(v_start) WITH ORDINALITY AS picked (id, place)
      WHERE t.id = picked.id AND t.status = 'PENDING'
      RETURNING 'claimed', t.id, t.claim_generation, t.lane::text, t.task_name::text, t.kwargs::text, t.retry_count + 1, t.options::text,
                (v_met + picked.place)::float8, t.queue_name::text;
      IF v_ahead <> '{}' THEN
        RETURN QUERY
        UPDATE horsies_tasks t
        SET status = 'CLAIMED', claimed_by = p_worker, claimed_at = p_now, claim_expires_at = p_now + p_lease,
            claim_generation = t.claim_generation % 2147483647 + 1
        FROM unnest(v_ahead) WITH ORDINALITY AS picked (id, place)
        WHERE t.id = picked.id AND t.status = 'PENDING'
        RETURNING 'buffered', t.id, t.claim_generation, t.lane::text, t.task_name::text, t.kwargs::text, t.retry_count + 1, t.options::text,
                (v_met + picked.place)::float8, t.queue_name::text;
      END IF;
      v_met := v_met + v_count;

      IF 'late' = ANY (v_verdicts) THEN
        v_expired := horsies_expire(
          ARRAY(SELECT u.id FROM unnest(v_ids, v_verdicts) AS u (id, verdict) WHERE u.verdict = 'late'), p_now);
        PERFORM horsies_final(p_channel, v_expired);
        RETURN QUERY
        SELECT 'expired', t.id, t.claim_generation, t.lane::text, t.task_name::text, NULL, t.retry_count + 1, NULL, NULL::float8, t.queue_name::text
        FROM horsies_tasks t WHERE t.id = ANY (v_expired);
        IF v_partitioned THEN  -- what expired may have been the head that a free permit waited for
          SELECT v_stopped OR coalesce(sum(horsies_unpark(p_limits[e.queue].queue_name, e.keys, e.permits)) > 0, false) INTO v_stopped
          FROM (SELECT k.queue, array_agg(k.key) AS keys, array_agg(k.permits) AS permits
                FROM (SELECT u.queue, u.key, count(*)::int AS permits FROM unnest(v_queues, v_keys, v_verdicts) AS u (queue, key, verdict)
                      WHERE u.verdict = 'late' AND u.key IS NOT NULL GROUP BY u.queue, u.key) AS k GROUP BY k.queue) AS e;
        END IF;
      END IF;
      IF 'park' = ANY (v_verdicts) THEN
        UPDATE horsies_tasks t SET parked = true
        WHERE t.id = ANY (ARRAY(SELECT u.id FROM unnest(v_ids, v_verdicts) AS u (id, verdict) WHERE u.verdict = 'park'));
        v_limited := true;
      END IF;
      IF 'here' = ANY (v_verdicts) THEN
        SELECT v_but || jsonb_object_agg(h.queue, coalesce(v_but -> h.queue::text, '[]') || h.keys) INTO v_but
        FROM (SELECT u.queue, jsonb_agg(DISTINCT u.key) AS keys FROM unnest(v_queues, v_keys, v_verdicts) AS u (queue, key, verdict)
              WHERE u.verdict = 'here' GROUP BY u.queue) AS h;
        v_limited := true;
      END IF;
      EXIT WHEN NOT v_stopped OR p_total <= 0;
      IF v_met >= 2000 THEN  -- a pass stays short; the engine comes round again
        RETURN QUERY SELECT 'again', NULL::uuid, NULL::int, NULL, NULL, NULL, NULL::int, NULL, NULL::float8, NULL;
        p_total := 0;
        EXIT;
      END IF;
      v_extra := least(greatest(v_extra * 5, 20), 500);
    END LOOP;
    v_first := v_last + 1;
  END LOOP;
  IF v_limited OR p_total <= 0 OR 0 = ANY (p_rooms) THEN
    RETURN QUERY SELECT 'limited', NULL::uuid, NULL::int, NULL, NULL, NULL, NULL::int, NULL, NULL::float8, NULL;
  END IF;
  IF v_due IS NOT NULL THEN
    RETURN QUERY SELECT 'due', NULL::uuid, NULL::int, NULL, NULL, NULL, NULL::int, NULL, extract(epoch FROM v_due - clock_timestamp())::float8, NULL;
  END IF;
  IF v_firsts <> '{}' THEN
    kind := 'firsts';
    kwargs := v_firsts::text;
    number := extract(epoch FROM p_now);
    RETURN NEXT;
  END IF;
  IF p_freed <> '{}' THEN
    PERFORM horsies_offer(p_channel, p_limits, p_cluster, p_freed, v_used, p_marks, p_behind);
  END IF;
END
$$;
