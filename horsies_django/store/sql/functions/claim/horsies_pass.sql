-- The pass: settles, releases, locks, unparks, starts and claims, in one round trip and one transaction; see docs/explanation/the-pass.md.
-- Each step is a statement of its own, so that it sees what earlier steps did and what others committed before the locks were taken. The
-- cluster's cap is read first: a change of limits locks their table, so no pass is in progress during a change. Of the queues, the limits
-- are read of those that may have tasks and of those whose tasks it wrote: a queue in which nothing happens costs nothing.
-- p_expired_leases: also release claims whose lease ended. started, returned, expired: what became of p_starts, in their order. verdicts to
-- queue_names: see horsies_claim. missed: outcomes and releases that were not written. decided, in_runs: see horsies_settle. due_in: seconds until
-- the next task becomes due. dead: the worker was declared dead. firsts, held: for the next cursors, as of the epoch looked_at.
-- With cold CPU caches each statement and call is slow, so what needs no table is an expression, and nothing is called without need.
-- Locks: advisory locks of caps with waiting tasks; task rows, skipping locked ones. Index: see the functions that it calls.
CREATE FUNCTION horsies_pass(p_wanted horsies_wanted, p_outcomes jsonb, p_releases jsonb, p_starts jsonb, p_expired_leases boolean,
                             OUT missed uuid[], OUT decided jsonb, OUT started uuid[], OUT returned uuid[], OUT expired uuid[],
                             OUT verdicts text[], OUT ids uuid[], OUT generations int[], OUT lanes text[], OUT task_names text[],
                             OUT kwargs text[], OUT attempts int[], OUT options text[], OUT queue_names text[],
                             OUT due_in float8, OUT limited boolean, OUT again boolean, OUT dead boolean,
                             OUT firsts jsonb[], OUT held jsonb, OUT looked_at float8, OUT in_runs uuid[])
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_caps horsies_caps;  -- of the queues that the worker serves
  v_claimable horsies_caps;
  v_looked record;
  v_names text[];
  v_limit horsies_limits;
  v_capped boolean := false;
  v_partitioned boolean := false;
  v_bounded boolean := false;
  v_written record;
  v_finals uuid[];
  v_freed text[] := '{}';
  v_keys text[] := '{}';
  v_claiming boolean := p_wanted.sync > 0 OR p_wanted.async > 0 OR p_wanted.prefetch > 0;
  v_offered boolean := false;
  v_now timestamptz := p_wanted.now;  -- NULL: use the clock
  v_rooms record;
  v_taker horsies_workers;
  v_claimed record;
BEGIN
  limited := false;
  again := false;
  dead := false;
  v_caps.cluster := (SELECT l.max_concurrency FROM horsies_limits l WHERE l.queue_name = '*');

  IF p_outcomes IS NOT NULL THEN
    v_written := horsies_settle(p_wanted.worker, p_outcomes, p_wanted.max_crashes, p_wanted.channel, v_now);
    v_finals := v_written.finals;
    v_freed := v_written.queues;
    v_keys := v_written.keys;
    decided := v_written.decided;
    in_runs := v_written.in_runs;
    IF cardinality(v_written.ids) < jsonb_array_length(p_outcomes) THEN
      missed := horsies_missed(p_outcomes, v_written.ids);
    END IF;
  END IF;
  IF p_releases IS NOT NULL THEN
    v_written := horsies_release_claims(p_wanted.worker, p_releases, p_wanted.channel);
    v_finals := v_finals || v_written.finals;
    v_freed := v_freed || v_written.queues;
    v_keys := v_keys || v_written.keys;
    p_wanted.behind := v_written.earliest;
    IF cardinality(v_written.ids) < jsonb_array_length(p_releases) THEN
      missed := missed || horsies_missed(p_releases, v_written.ids);
    END IF;
  END IF;
  IF p_expired_leases THEN
    p_wanted.behind := least(p_wanted.behind, horsies_release_expired_leases(p_wanted.queues, p_wanted.channel));
  END IF;

  v_names := v_freed;
  IF NOT v_freed <@ p_wanted.queues THEN  -- it claims from its own queues only
    v_names := ARRAY(SELECT f.queue FROM unnest(v_freed) AS f (queue) WHERE f.queue = ANY (p_wanted.queues));
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
    dead := true;  -- its tasks are given to other workers
  ELSIF v_claiming OR p_starts IS NOT NULL OR (v_capped AND v_freed <> '{}') THEN
    v_claimable := v_caps;
    IF v_capped THEN
      looked_at := extract(epoch FROM coalesce(v_now, clock_timestamp()));
      v_looked := horsies_claimable_queues(p_wanted, v_caps, v_freed, p_starts IS NOT NULL);
      v_claimable.queues := v_looked.live;
      IF v_looked.firsts <> '{}' THEN
        firsts := ARRAY[v_looked.firsts];
      END IF;
      IF v_claimable.queues <> '{}' THEN
        PERFORM horsies_lock_caps(v_claimable.queues, v_caps.cluster);
      END IF;
    END IF;
    p_wanted.now := coalesce(v_now, clock_timestamp());  -- after the locks
    IF v_partitioned AND v_freed <> '{}' THEN
      PERFORM horsies_unpark(f.queue, array_agg(f.key), array_agg(f.permits))
      FROM (SELECT u.queue, u.key, count(*)::int AS permits FROM unnest(v_freed, v_keys) AS u (queue, key)
            WHERE u.key IS NOT NULL GROUP BY u.queue, u.key) AS f
      WHERE EXISTS (SELECT FROM unnest(v_claimable.queues) AS l WHERE l.queue_name = f.queue
                    AND (l.partition_max_concurrency IS NOT NULL OR l.partition_local_limit IS NOT NULL))
      GROUP BY f.queue;
    END IF;
    IF p_starts IS NOT NULL THEN
      SELECT s.started, s.expired, s.returned INTO started, expired, returned FROM horsies_start(p_wanted, v_caps, p_starts) AS s;
      IF v_capped OR v_bounded THEN  -- some may be pending again
        p_wanted.behind := least(p_wanted.behind, horsies_notify_requeued(
          p_wanted.channel, ARRAY(SELECT (s.value ->> 'id')::uuid FROM jsonb_array_elements(p_starts) AS s)));
      END IF;
    END IF;
    IF v_claiming AND v_claimable.queues <> '{}' THEN
      v_rooms := horsies_remaining_capacities(
        v_claimable.queues, p_wanted.worker, p_wanted.lease IS NULL, nullif(p_wanted.batch, 0), p_wanted.now, p_wanted.cursors);
      held := nullif(v_rooms.held, '{}');
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
      v_claimed := horsies_claim(p_wanted, v_claimable, v_rooms.rooms, CASE WHEN v_capped THEN v_freed ELSE '{}' END);
      verdicts := v_claimed.verdicts;
      ids := v_claimed.ids;
      generations := v_claimed.generations;
      lanes := v_claimed.lanes;
      task_names := v_claimed.task_names;
      kwargs := v_claimed.kwargs;
      attempts := v_claimed.attempts;
      options := v_claimed.options;
      queue_names := v_claimed.queue_names;
      due_in := extract(epoch FROM v_claimed.due - clock_timestamp());
      limited := v_claimed.limited;
      again := v_claimed.again;
      IF v_claimed.firsts <> '{}' THEN
        firsts := firsts || v_claimed.firsts;
      END IF;
      looked_at := coalesce(looked_at, extract(epoch FROM p_wanted.now));
    END IF;
  END IF;

  IF v_capped AND NOT v_offered AND v_freed <> '{}' THEN
    PERFORM horsies_notify_capacity(p_wanted, v_caps, v_freed, '{}');
  END IF;
  IF v_finals <> '{}' THEN
    PERFORM horsies_notify_finished(p_wanted.channel, v_finals);
  END IF;
END
$$;
