-- What a pass does after it has settled, if it is not short: it releases, locks, unparks, starts and claims. Each step is a statement of its
-- own, so that it sees what earlier steps did and what others committed before the locks were taken. The cluster's cap is read first: a
-- change of limits locks their table, so no pass is in progress during a change. Of the queues, the limits are read of those that may have
-- tasks and of those whose tasks it wrote: a queue in which nothing happens costs nothing.
-- p_freed, p_keys: queues and partitions of what was settled. passed: the last row of the pass; see horsies_claim for limited and again. The
-- report adds to p_report: started, returned, expired: what became of p_starts; idle: as firsts, of queues without waiting tasks; held: for
-- the next cursors, like firsts as of the epoch looked_at. durable: the commit shall wait for the disk.
-- Locks: advisory locks of caps with waiting tasks; task rows, skipping locked ones. Index: see the functions that it calls.
CREATE FUNCTION horsies_whole_pass(p_wanted horsies_wanted, p_releases jsonb, p_starts jsonb, p_expired_leases boolean, p_freed text[],
                                   p_keys text[], p_report jsonb, OUT passed horsies_passed, OUT claims horsies_passed[], OUT durable boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_caps horsies_caps;  -- of the queues that the worker serves
  v_claimable horsies_caps;
  v_looked record;
  v_looked_at timestamptz;
  v_names text[];
  v_limit horsies_limits;
  v_capped boolean := false;
  v_partitioned boolean := false;
  v_bounded boolean := false;
  v_written record;
  v_claiming boolean := p_wanted.sync > 0 OR p_wanted.async > 0 OR p_wanted.prefetch > 0;
  v_offered boolean := false;
  v_now timestamptz := p_wanted.now;  -- NULL: use the clock
  v_rooms record;
  v_taker horsies_workers;
  v_claimed record;
BEGIN
  durable := p_wanted.durable;
  v_caps.cluster := (SELECT l.max_concurrency FROM horsies_limits l WHERE l.queue_name = '*');
  IF p_releases IS NOT NULL THEN
    v_written := horsies_release_claims(p_wanted.worker, p_releases, p_wanted.channel);
    p_freed := p_freed || v_written.queues;
    p_keys := p_keys || v_written.keys;
    p_wanted.behind := v_written.earliest;
    p_report := p_report || jsonb_build_object('missed', coalesce(p_report -> 'missed', '[]') || to_jsonb(v_written.missed));
  END IF;
  IF p_expired_leases THEN
    p_wanted.behind := least(p_wanted.behind, horsies_release_expired_leases(p_wanted.queues, p_wanted.channel));
  END IF;

  v_names := p_freed;
  IF NOT p_freed <@ p_wanted.queues THEN  -- it claims from its own queues only
    v_names := ARRAY(SELECT f.queue FROM unnest(p_freed) AS f (queue) WHERE f.queue = ANY (p_wanted.queues));
  END IF;
  IF v_claiming THEN
    v_names := v_names || CASE WHEN p_wanted.cursors IS NULL THEN horsies_waiting_queues(p_wanted.queues) ELSE p_wanted.queues END;
  END IF;
  IF p_starts IS NOT NULL THEN
    v_names := v_names || ARRAY(
      SELECT t.queue_name::text FROM horsies_tasks t
      WHERE t.id = ANY (ARRAY(SELECT (s.value ->> 'id')::uuid FROM jsonb_array_elements(p_starts) AS s)));
  END IF;
  v_caps.queues := ARRAY(SELECT l FROM horsies_limits l WHERE l.queue_name = ANY (v_names) ORDER BY l.priority, l.queue_name);
  FOREACH v_limit IN ARRAY v_caps.queues LOOP
    IF v_limit.partition_max_concurrency IS NOT NULL OR v_limit.partition_local_limit IS NOT NULL THEN
      v_partitioned := true;
      p_wanted.cursors := p_wanted.cursors - v_limit.queue_name::text;  -- unparking sends no notification
    END IF;
    v_capped := v_capped OR v_partitioned OR v_limit.max_concurrency IS NOT NULL;
    v_bounded := v_bounded OR v_limit.local_limit IS NOT NULL;
  END LOOP;
  v_capped := v_capped OR v_caps.cluster IS NOT NULL;

  IF EXISTS (SELECT FROM horsies_heartbeats b WHERE b.id = p_wanted.worker AND b.died_at IS NOT NULL) THEN
    passed.dead := true;  -- its tasks are given to other workers
  ELSIF v_claiming OR p_starts IS NOT NULL OR (v_capped AND p_freed <> '{}') THEN
    v_claimable := v_caps;
    IF v_capped THEN
      v_looked_at := coalesce(v_now, clock_timestamp());
      v_looked := horsies_claimable_queues(p_wanted, v_caps, p_freed, p_starts IS NOT NULL);
      v_claimable.queues := v_looked.live;
      IF v_looked.firsts <> '{}' THEN
        p_report := p_report || jsonb_build_object('idle', v_looked.firsts, 'looked_at', extract(epoch FROM v_looked_at));
      END IF;
      IF v_claimable.queues <> '{}' THEN
        PERFORM horsies_lock_caps(v_claimable.queues, v_caps.cluster);
      END IF;
    END IF;
    p_wanted.now := coalesce(v_now, clock_timestamp());  -- after the locks
    IF v_partitioned AND p_freed <> '{}' THEN
      PERFORM horsies_unpark(f.queue, array_agg(f.key), array_agg(f.permits))
      FROM (SELECT u.queue, u.key, count(*)::int AS permits FROM unnest(p_freed, p_keys) AS u (queue, key)
            WHERE u.key IS NOT NULL GROUP BY u.queue, u.key) AS f
      WHERE EXISTS (SELECT FROM unnest(v_claimable.queues) AS l WHERE l.queue_name = f.queue
                    AND (l.partition_max_concurrency IS NOT NULL OR l.partition_local_limit IS NOT NULL))
      GROUP BY f.queue;
    END IF;
    IF p_starts IS NOT NULL THEN
      v_written := horsies_start(p_wanted, v_caps, p_starts);
      durable := durable OR v_written.expired IS NOT NULL OR v_written.returned IS NOT NULL;
      p_report := p_report || to_jsonb(v_written);
      IF v_capped OR v_bounded THEN  -- some may be pending again
        p_wanted.behind := least(p_wanted.behind, horsies_notify_requeued(
          p_wanted.channel, ARRAY(SELECT (s.value ->> 'id')::uuid FROM jsonb_array_elements(p_starts) AS s)));
      END IF;
    END IF;
    IF v_claiming AND v_claimable.queues <> '{}' THEN
      v_rooms := horsies_remaining_capacities(
        v_claimable.queues, p_wanted.worker, p_wanted.lease IS NULL, nullif(p_wanted.batch, 0), p_wanted.now, p_wanted.cursors);
      IF v_caps.cluster IS NOT NULL THEN
        p_wanted.total := least(p_wanted.total, horsies_remaining_cluster_capacity(v_caps.cluster, p_wanted.now));
      END IF;
      IF p_wanted.grace IS NOT NULL THEN
        SELECT w.* INTO v_taker FROM horsies_workers w WHERE w.id = p_wanted.worker;
        IF v_taker.task_names IS NOT NULL THEN  -- looked up for every task: fast among the keys of an object
          v_taker.task_names := coalesce((SELECT jsonb_object_agg(n.name, 1) FROM jsonb_array_elements_text(v_taker.task_names) AS n (name)), '{}');
        END IF;
        p_wanted.taker := v_taker;
      END IF;
      v_offered := true;
      v_claimed := horsies_claim(p_wanted, v_claimable, v_rooms.rooms, CASE WHEN v_capped THEN p_freed ELSE '{}' END);
      claims := v_claimed.claims;
      durable := durable OR v_claimed.late;
      passed.due_in := extract(epoch FROM v_claimed.due - clock_timestamp());
      passed.limited := v_claimed.limited;
      passed.again := v_claimed.again;
      IF v_claimed.firsts <> '{}' OR v_rooms.held <> '{}' THEN
        p_report := jsonb_build_object('firsts', v_claimed.firsts, 'held', v_rooms.held, 'looked_at', extract(epoch FROM p_wanted.now)) || p_report;
      END IF;
    END IF;
  END IF;
  IF v_capped AND NOT v_offered AND p_freed <> '{}' THEN
    PERFORM horsies_notify_capacity(p_wanted, v_caps, p_freed, '{}');
  END IF;
  passed.kind := 'whole';
  passed.report := nullif(p_report, '{}');
END
$$;
