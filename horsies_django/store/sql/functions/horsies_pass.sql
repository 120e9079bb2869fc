-- The pass: once round the engine in one round trip and one transaction, as separate statements so that each sees what the
-- one before it did, and what others did before it got the locks: settle, release, locks, unpark, start, claim.
-- The limits are read first of all: a change of them locks that table, so no pass is under way while one is made.
-- Finished ids are announced to waiting processes, if there are any; a queue where permits came free and were not used, though tasks
-- wait, is announced to the workers. p_lease: soft mode, for tasks taken ahead. p_sweep: look for claims whose lease ended.
-- p_marks: for each queue and lane where its waiting tasks can be, as the last pass left it, and when its tasks in flight were
-- claimed ("held"), both so that scans begin behind what is dead and cannot be vacuumed; NULL, and {} for a queue: anywhere. What
-- comes back to an earlier place in this very pass is found there. Queues with limits per partition have no marks: unparking tells nobody.
-- p_grace: leave out what this worker's row says it does not know while it is younger than that; NULL: take everything.
-- p_now stands in for the clock, in tests.
-- Kinds: those of horsies_claim and horsies_start, 'missed' per outcome or release that did not land, and 'dead' instead of
-- claims when the worker was declared dead; 'firsts' and 'held', where the next marks are, if there are p_marks; 'decided', what became
-- of failed tasks beyond their outcome (see horsies_settle).
-- number: the place of a claim in the order of claims, or the seconds until what is due.
-- Every statement and every call by one costs this function dearly after an idle moment, when nothing of it is in the CPU's caches:
-- what needs no table is written as expressions, and what nothing calls for is not asked.
-- Locks: advisory locks of caps where something of their queue waits; task rows, never waiting for one. Index: see its functions.
CREATE FUNCTION horsies_pass(p_worker uuid, p_channel text, p_outcomes jsonb, p_releases jsonb, p_starts jsonb, p_queues text[],
                             p_sync int, p_async int, p_buffer int, p_total int, p_batch int, p_lease interval, p_sweep boolean,
                             p_max_crashes int, p_grace interval, p_marks jsonb, p_now timestamptz)
RETURNS TABLE (kind text, id uuid, generation int, lane text, task_name text, kwargs text, attempt int, options text, number float8,
               queue_name text)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_limits horsies_limits[] := '{}';
  v_live horsies_limits[];
  v_looked record;
  v_limit horsies_limits;
  v_cluster int;
  v_capped boolean := false;
  v_partitioned boolean := false;
  v_written record;
  v_finals uuid[];
  v_freed text[] := '{}';
  v_keys text[] := '{}';
  v_claiming boolean := p_sync > 0 OR p_async > 0 OR p_buffer > 0;
  v_offered boolean := false;
  v_now timestamptz;
  v_rooms record;
  v_behind timestamptz;
  v_bounded boolean := false;
  v_taker horsies_workers;
BEGIN
  FOREACH v_limit IN ARRAY ARRAY(
    SELECT l FROM horsies_limits l WHERE l.queue_name = ANY (p_queues || '*'::text) ORDER BY l.priority, l.queue_name)
  LOOP
    IF v_limit.queue_name = '*' THEN
      v_cluster := v_limit.max_concurrency;
    ELSE
      v_limits := v_limits || v_limit;
      IF v_limit.partition_max_concurrency IS NOT NULL OR v_limit.partition_local_limit IS NOT NULL THEN
        v_partitioned := true;
        p_marks := p_marks - v_limit.queue_name::text;
      END IF;
      v_capped := v_capped OR v_partitioned OR v_limit.max_concurrency IS NOT NULL;
      v_bounded := v_bounded OR v_limit.local_limit IS NOT NULL;
    END IF;
  END LOOP;
  v_capped := v_capped OR v_cluster IS NOT NULL;

  IF p_outcomes IS NOT NULL THEN
    v_written := horsies_settle(p_worker, p_outcomes, p_max_crashes, p_channel, p_now);
    v_finals := v_written.finals;
    v_freed := v_written.queues;
    v_keys := v_written.keys;
    IF v_written.decided IS NOT NULL THEN
      RETURN QUERY SELECT 'decided', NULL::uuid, NULL::int, NULL, NULL, v_written.decided::text, NULL::int, NULL, NULL::float8, NULL;
    END IF;
    IF cardinality(v_written.ids) < jsonb_array_length(p_outcomes) THEN
      RETURN QUERY SELECT m.*, NULL FROM horsies_missed(p_outcomes, v_written.ids) AS m;
    END IF;
  END IF;
  IF p_releases IS NOT NULL THEN
    v_written := horsies_release(p_worker, p_releases, p_channel);
    v_finals := v_finals || v_written.finals;
    v_freed := v_freed || v_written.queues;
    v_keys := v_keys || v_written.keys;
    v_behind := v_written.earliest;
    IF cardinality(v_written.ids) < jsonb_array_length(p_releases) THEN
      RETURN QUERY SELECT m.*, NULL FROM horsies_missed(p_releases, v_written.ids) AS m;
    END IF;
  END IF;
  IF p_sweep THEN
    v_behind := least(v_behind, horsies_lapse(p_queues, p_channel));
  END IF;

  IF EXISTS (SELECT FROM horsies_heartbeats b WHERE b.id = p_worker AND b.died_at IS NOT NULL) THEN
    RETURN QUERY SELECT 'dead', NULL::uuid, NULL::int, NULL, NULL, NULL, NULL::int, NULL, NULL::float8, NULL;  -- its tasks are being given away
  ELSIF v_claiming OR p_starts IS NOT NULL OR (v_capped AND v_freed <> '{}') THEN
    v_live := v_limits;
    IF v_capped THEN
      v_now := coalesce(p_now, clock_timestamp());
      v_looked := horsies_live(v_limits, v_cluster, v_freed, p_starts IS NOT NULL, CASE
        WHEN p_buffer > 0 OR (p_sync > 0 AND p_async > 0) THEN '{sync,async}' WHEN p_sync > 0 THEN '{sync}' WHEN p_async > 0 THEN '{async}'
        ELSE '{}' END::text[], p_marks, v_behind);
      v_live := v_looked.live;
      IF v_looked.firsts <> '{}' THEN
        RETURN QUERY SELECT 'firsts', NULL::uuid, NULL::int, NULL, NULL, v_looked.firsts::text, NULL::int, NULL,
                            extract(epoch FROM v_now)::float8, NULL;
      END IF;
      IF v_live <> '{}' THEN
        PERFORM horsies_lock(v_live, v_cluster);
      END IF;
    END IF;
    v_now := coalesce(p_now, clock_timestamp());
    IF v_partitioned AND v_freed <> '{}' THEN
      PERFORM horsies_unpark(f.queue, array_agg(f.key), array_agg(f.permits))
      FROM (SELECT u.queue, u.key, count(*)::int AS permits FROM unnest(v_freed, v_keys) AS u (queue, key)
            WHERE u.key IS NOT NULL GROUP BY u.queue, u.key) AS f
      WHERE EXISTS (SELECT FROM unnest(v_live) AS l WHERE l.queue_name = f.queue
                    AND (l.partition_max_concurrency IS NOT NULL OR l.partition_local_limit IS NOT NULL))
      GROUP BY f.queue;
    END IF;
    IF p_starts IS NOT NULL THEN
      RETURN QUERY
      SELECT s.kind, s.id, NULL::int, NULL, NULL, NULL, NULL::int, NULL, NULL::float8, NULL
      FROM horsies_start(p_worker, p_channel, v_limits, v_cluster, v_now, p_starts, p_marks) AS s;
      IF v_capped OR v_bounded THEN  -- some may have come back
        v_behind := least(v_behind, horsies_back(p_channel, ARRAY(SELECT (s.value ->> 'id')::uuid FROM jsonb_array_elements(p_starts) AS s)));
      END IF;
    END IF;
    IF v_claiming AND v_live <> '{}' THEN
      v_rooms := horsies_rooms(v_live, p_worker, p_lease IS NULL, nullif(p_batch, 0), v_now, p_marks);
      IF v_rooms.held <> '{}' THEN
        RETURN QUERY SELECT 'held', NULL::uuid, NULL::int, NULL, NULL, v_rooms.held::text, NULL::int, NULL,
                            extract(epoch FROM v_now)::float8, NULL;
      END IF;
      IF v_cluster IS NOT NULL THEN
        p_total := least(p_total, horsies_cluster_room(v_cluster, v_now));
      END IF;
      IF p_grace IS NOT NULL THEN
        SELECT w.* INTO v_taker FROM horsies_workers w WHERE w.id = p_worker;
        IF v_taker.task_names IS NOT NULL THEN  -- asked for every task: among the keys of an object a name is found at once
          v_taker.task_names := coalesce((SELECT jsonb_object_agg(n.name, 1) FROM jsonb_array_elements_text(v_taker.task_names) AS n (name)), '{}');
        END IF;
      END IF;
      v_offered := true;
      RETURN QUERY
      SELECT c.kind, c.id, c.generation, c.lane, c.task_name, c.kwargs, c.attempt, c.options, c.number, c.queue_name
      FROM horsies_claim(p_worker, p_channel, v_live, v_cluster, CASE WHEN v_capped THEN v_freed ELSE '{}' END, v_rooms.rooms, v_now, v_taker,
                         p_grace, p_lease, p_marks, v_behind, p_total, p_sync, p_async, p_buffer) AS c;
    END IF;
  END IF;

  IF v_capped AND NOT v_offered AND v_freed <> '{}' THEN
    PERFORM horsies_offer(p_channel, v_limits, v_cluster, v_freed, '{}', p_marks, v_behind);
  END IF;
  IF v_finals <> '{}' THEN
    PERFORM horsies_final(p_channel, v_finals);
  END IF;
END
$$;
