-- The pass: once round the engine in one round trip and one transaction, as separate statements so that each sees what the
-- one before it did, and what others did before it got the locks: settle, release, locks, unpark, start, claim.
-- The limits are read first of all: a change of them locks that table, so no pass is under way while one is made.
-- Finished ids are announced to waiting processes, if there are any; a queue where permits came free and were not used, though tasks
-- wait, is announced to the workers. p_lease: soft mode, for tasks taken ahead. p_sweep: look for claims whose lease ended.
-- Kinds: those of horsies_claim_v2 and horsies_start_v1, 'settled' per outcome or release that landed, and 'dead' instead of claims
-- when the worker was declared dead.
-- Locks: advisory locks of caps where something of their queue waits; task rows, never waiting for one. Index: see its functions.
CREATE FUNCTION horsies_pass_v2(p_worker uuid, p_channel text, p_outcomes jsonb, p_releases jsonb, p_starts jsonb, p_queues text[],
                                p_sync int, p_async int, p_buffer int, p_total int, p_batch int, p_lease interval, p_sweep boolean)
RETURNS TABLE (kind text, id uuid, generation int, lane text, task_name text, kwargs text, seconds float8)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_limits horsies_limits[];
  v_live horsies_limits[];
  v_cluster int;
  v_capped boolean;
  v_done uuid[] := '{}';
  v_freed text[] := '{}';
  v_keys text[] := '{}';
  v_back record;
  v_used text[] := '{}';
  v_now timestamptz;
  v_rooms int[];
  v_claim record;
BEGIN
  SELECT array_agg(l ORDER BY l.priority, l.queue_name) FILTER (WHERE l.queue_name <> '*'),
         min(l.max_concurrency) FILTER (WHERE l.queue_name = '*')
  INTO v_limits, v_cluster FROM horsies_limits l WHERE l.queue_name = ANY (p_queues || '*'::text);
  v_capped := v_cluster IS NOT NULL OR EXISTS (
    SELECT FROM unnest(v_limits) AS l
    WHERE l.max_concurrency IS NOT NULL OR l.partition_max_concurrency IS NOT NULL OR l.partition_local_limit IS NOT NULL);

  IF p_outcomes IS NOT NULL THEN
    SELECT coalesce(s.ids, '{}'), coalesce(s.queues, '{}'), coalesce(s.keys, '{}') INTO v_done, v_freed, v_keys
    FROM horsies_settle_v2(p_worker, p_outcomes) AS s;
    RETURN QUERY SELECT 'settled', s.id, NULL::int, NULL, NULL, NULL, NULL::float8 FROM unnest(v_done) AS s (id);
  END IF;
  IF p_releases IS NOT NULL THEN
    SELECT r.ids, r.queues, r.keys INTO v_back FROM horsies_release_v2(p_worker, p_releases, p_channel) AS r;
    v_freed := v_freed || v_back.queues;
    v_keys := v_keys || v_back.keys;
    RETURN QUERY SELECT 'settled', s.id, NULL::int, NULL, NULL, NULL, NULL::float8 FROM unnest(v_back.ids) AS s (id);
  END IF;
  IF p_sweep THEN
    PERFORM horsies_lapse_v1(p_queues);
  END IF;

  IF EXISTS (SELECT FROM horsies_heartbeats b WHERE b.id = p_worker AND b.died_at IS NOT NULL) THEN
    RETURN QUERY SELECT 'dead', NULL::uuid, NULL::int, NULL, NULL, NULL, NULL::float8;  -- its tasks are being given away
  ELSIF p_sync > 0 OR p_async > 0 OR p_buffer > 0 OR p_starts IS NOT NULL OR (v_capped AND v_freed <> '{}') THEN
    v_live := v_limits;
    IF v_capped THEN
      v_live := horsies_live_v1(v_limits, v_cluster, v_freed, p_starts IS NOT NULL, p_sync > 0 OR p_async > 0 OR p_buffer > 0);
      IF v_live <> '{}' THEN
        PERFORM horsies_lock_v1(v_live, v_cluster);
      END IF;
    END IF;
    v_now := clock_timestamp();
    IF v_capped THEN
      PERFORM horsies_unpark_v1(f.queue, array_agg(f.key), array_agg(f.permits))
      FROM (SELECT u.queue, u.key, count(*)::int AS permits FROM unnest(v_freed, v_keys) AS u (queue, key)
            WHERE u.key IS NOT NULL GROUP BY u.queue, u.key) AS f
      WHERE EXISTS (SELECT FROM unnest(v_live) AS l WHERE l.queue_name = f.queue
                    AND (l.partition_max_concurrency IS NOT NULL OR l.partition_local_limit IS NOT NULL))
      GROUP BY f.queue;
    END IF;
    IF p_starts IS NOT NULL THEN
      FOR v_claim IN SELECT s.kind, s.id FROM horsies_start_v1(p_worker, v_limits, v_cluster, v_now, p_starts) AS s LOOP
        kind := v_claim.kind;
        id := v_claim.id;
        IF kind = 'expired' THEN
          v_done := v_done || id;
        END IF;
        RETURN NEXT;
      END LOOP;
    END IF;
    IF (p_sync > 0 OR p_async > 0 OR p_buffer > 0) AND v_live <> '{}' THEN
      v_rooms := horsies_rooms_v1(v_live, p_worker, p_lease IS NULL, nullif(p_batch, 0), v_now);
      IF v_cluster IS NOT NULL THEN
        p_total := least(p_total, horsies_cluster_room_v1(v_cluster, v_now));
      END IF;
      FOR v_claim IN
        SELECT c.* FROM horsies_claim_v2(p_worker, v_live, v_rooms, v_now, p_lease, p_total, p_sync, p_async, p_buffer) AS c
      LOOP
        kind := v_claim.kind;
        id := v_claim.id;
        generation := v_claim.generation;
        lane := v_claim.lane;
        task_name := v_claim.task_name;
        kwargs := v_claim.kwargs;
        seconds := extract(epoch FROM v_claim.moment - clock_timestamp())::float8;
        IF kind = 'claimed' THEN
          v_used := v_used || v_claim.queue;
        ELSIF kind = 'expired' THEN
          v_done := v_done || id;
        END IF;
        RETURN NEXT;
      END LOOP;
    END IF;
  END IF;

  IF v_capped AND v_freed <> '{}' THEN
    PERFORM horsies_offer_v1(p_channel, v_limits, v_cluster, v_freed, v_used);
  END IF;
  IF v_done <> '{}' AND EXISTS (SELECT FROM horsies_waiters w WHERE w.expires_at > clock_timestamp()) THEN
    -- 200 ids of 36 characters stay below the 8,000 bytes that a payload may have
    PERFORM pg_notify(p_channel || '_done', string_agg(d.id::text, ' '))
    FROM unnest(v_done) WITH ORDINALITY AS d (id, place) GROUP BY (d.place - 1) / 200;
  END IF;
END
$$;
