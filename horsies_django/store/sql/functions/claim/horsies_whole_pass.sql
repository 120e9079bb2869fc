-- Does the work of a pass that is not short, after it has settled: it releases, locks, unparks,
-- starts and claims. Each step is a statement of its own, so that it sees what earlier steps did
-- and what others committed before the locks were taken.
-- The cluster's cap is read first: a change of limits locks their table, so no pass is in progress
-- during a change. The limits are read of queues that may have tasks and of queues whose tasks the
-- pass wrote: a queue in which nothing happens costs nothing. A queue with a policy waits while its
-- waiting tasks get their partitions by a new rule.
-- The caps are locked of queues with waiting tasks, and of queues in which this pass freed a permit
-- of a partition: until the commit, other passes count it as held and may park a new task.
-- Args:
--   p_freed, p_keys: queues and partitions of what was settled.
--   p_report: the report so far.
-- Returns:
--   passed: the last row of the pass; see horsies_claim for limited and again. Its report adds to
--     p_report: started, returned, expired: the ids in p_starts with this end; missed: the ids in
--     p_releases that were not released; firsts: see horsies_candidates; idle: as firsts, of queues
--     without waiting tasks; held: for the next cursors, like firsts as of the epoch looked_at;
--     far: its scans read dead entries more than 4,000 times, by what PostgreSQL counts for
--     autovacuum (track_counts).
--   durable: the commit shall wait for the disk.
-- Locks: advisory locks of caps; task rows, skipping locked ones.
-- Index: see the functions that it calls.
CREATE OR REPLACE FUNCTION horsies_whole_pass(
  p_wanted horsies_wanted, p_releases jsonb, p_starts jsonb, p_expired_leases boolean,
  p_freed text[], p_keys text[], p_report jsonb,
  OUT passed horsies_passed, OUT claims horsies_passed[], OUT durable boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := p_wanted.now;  -- NULL: use the clock
  v_claiming boolean := p_wanted.sync > 0 OR p_wanted.async > 0 OR p_wanted.prefetch > 0;
  v_cluster horsies_limits;
  v_written record;
  v_looked_at timestamptz;
  v_waiting record;
  v_active text[] := '{}';  -- queues with tasks to claim or start
  v_limits horsies_limits[];  -- of these, and of those with freed permits
  v_live horsies_limits[];  -- of those whose caps are locked if they have any
  v_limit horsies_limits;
  v_partitioned boolean;
  v_capped boolean;
  v_rooms record;
  v_taker horsies_workers;
  v_claimed record;
  v_used text[];
  v_index CONSTANT oid := 'horsies_tasks_claim'::regclass;
  v_dead bigint :=  -- entries without a row, so far
    pg_stat_get_xact_tuples_returned(v_index) - pg_stat_get_xact_tuples_fetched(v_index);
BEGIN
  durable := p_wanted.durable;

  SELECT l.* INTO v_cluster FROM horsies_limits l WHERE l.queue_name = '*';

  IF EXISTS (
    SELECT FROM horsies_heartbeats b WHERE b.id = p_wanted.worker AND b.died_at IS NOT NULL
  ) THEN
    passed.dead := true;  -- its tasks are given to other workers
    v_claiming := false;
    p_starts := NULL;
  END IF;

  IF p_releases IS NOT NULL THEN
    v_written := horsies_release(p_wanted, p_releases, true);
    p_freed := p_freed || v_written.queues;
    p_keys := p_keys || v_written.keys;
    p_wanted.behind := v_written.earliest;
    p_report := p_report || jsonb_build_object(
      'missed', coalesce(p_report -> 'missed', '[]') || to_jsonb(v_written.missed));
  END IF;
  IF p_expired_leases THEN
    p_wanted.behind := least(
      p_wanted.behind, (horsies_release(p_wanted, NULL, false)).earliest);
  END IF;

  IF v_claiming THEN
    IF p_wanted.cursors IS NOT NULL THEN  -- unparking sends no notification
      p_wanted.cursors := p_wanted.cursors - ARRAY(
        SELECT l.queue_name::text
        FROM horsies_limits l
        WHERE l.partition_max_concurrency IS NOT NULL OR l.partition_local_limit IS NOT NULL);
    END IF;
    v_looked_at := coalesce(v_now, clock_timestamp());
    v_waiting := horsies_waiting_queues(
      p_wanted.queues,
      CASE
        WHEN p_wanted.async = 0 THEN '{sync}'
        WHEN p_wanted.sync + p_wanted.prefetch = 0 THEN '{async}'
        ELSE '{sync,async}'
      END::text[],
      p_wanted.cursors, p_wanted.behind);
    v_active := v_waiting.names;
    IF v_waiting.firsts <> '{}' THEN
      p_report := p_report || jsonb_build_object(
        'idle', v_waiting.firsts, 'looked_at', extract(epoch FROM v_looked_at));
    END IF;
  END IF;

  IF p_starts IS NOT NULL THEN
    v_active := v_active || ARRAY(
      SELECT t.queue_name::text
      FROM horsies_tasks t
      WHERE t.id = ANY (ARRAY(
        SELECT (s.value ->> 'id')::uuid FROM jsonb_array_elements(p_starts) AS s)));
  END IF;

  SELECT
    coalesce(array_agg(limits ORDER BY limits.priority, limits.queue_name), '{}'),
    coalesce(
      array_agg(limits ORDER BY limits.priority, limits.queue_name) FILTER (
        WHERE coalesce(limits.max_concurrency <> 0, true)
          AND (
            limits.partition_policy IS NULL
            OR NOT EXISTS (
              SELECT
              FROM horsies_queues swept_queue
              WHERE swept_queue.name = limits.queue_name AND swept_queue.sweep ? 'rule'
            )
          )
          AND (
            limits.queue_name = ANY (v_active)
            OR (queue_kind.partitioned AND limits.queue_name = ANY (p_freed))
          )
      ),
      '{}'),
    coalesce(bool_or(queue_kind.partitioned), false),
    coalesce(bool_or(queue_kind.partitioned OR limits.max_concurrency IS NOT NULL), false)
  INTO v_limits, v_live, v_partitioned, v_capped
  FROM horsies_limits limits
  CROSS JOIN LATERAL (
    SELECT
      limits.partition_max_concurrency IS NOT NULL
        OR limits.partition_local_limit IS NOT NULL AS partitioned
  ) AS queue_kind
  WHERE limits.queue_name = ANY (
    v_active || ARRAY(  -- it claims from its own queues only
      SELECT freed_permit.queue
      FROM unnest(p_freed) AS freed_permit (queue)
      WHERE freed_permit.queue = ANY (p_wanted.queues)));

  v_capped := v_capped OR v_cluster.max_concurrency IS NOT NULL;
  IF v_capped AND v_live <> '{}' THEN
    PERFORM horsies_lock_caps(v_live, v_cluster.max_concurrency);
  END IF;
  p_wanted.now := coalesce(v_now, clock_timestamp());  -- after the locks

  IF v_partitioned AND p_freed <> '{}' THEN
    PERFORM horsies_unpark(v_live, p_freed, p_keys);
  END IF;

  IF p_starts IS NOT NULL THEN
    v_written := horsies_start(
      p_wanted, v_limits, coalesce(v_cluster.max_concurrency = 0, false), p_starts);
    durable := durable OR v_written.expired IS NOT NULL OR v_written.returned IS NOT NULL;
    p_wanted.behind := least(p_wanted.behind, v_written.earliest);
    p_report := p_report || jsonb_build_object(
      'started', v_written.started, 'expired', v_written.expired, 'returned', v_written.returned);
  END IF;

  IF v_claiming AND v_live <> '{}' THEN
    v_rooms := horsies_remaining_capacity(
      v_live, p_wanted.worker, p_wanted.lease IS NULL, p_wanted.now, p_wanted.cursors);
    IF p_wanted.batch > 0 THEN
      v_rooms.rooms := ARRAY(
        SELECT least(r.room, p_wanted.batch)
        FROM unnest(v_rooms.rooms) WITH ORDINALITY AS r (room, place)
        ORDER BY r.place);
    END IF;
    IF v_cluster.max_concurrency IS NOT NULL THEN
      p_wanted.total := least(
        p_wanted.total,
        (horsies_remaining_capacity(ARRAY[v_cluster], NULL, true, p_wanted.now, NULL)).rooms[1]);
    END IF;

    IF p_wanted.grace IS NOT NULL THEN
      SELECT w.* INTO v_taker FROM horsies_workers w WHERE w.id = p_wanted.worker;

      -- looked up for every task: fast among the keys of an object
      IF v_taker.task_names IS NOT NULL THEN
        v_taker.task_names := coalesce(
          (
            SELECT jsonb_object_agg(n.name, 1)
            FROM jsonb_array_elements_text(v_taker.task_names) AS n (name)
          ),
          '{}');
      END IF;
      p_wanted.taker := v_taker;
    END IF;

    v_claimed := horsies_claim(p_wanted, v_live, v_rooms.rooms);
    claims := v_claimed.claims;
    durable := durable OR v_claimed.late;
    passed.due_in :=  -- an infinite time has no difference
      date_part('epoch', v_claimed.due) - date_part('epoch', clock_timestamp());
    passed.limited :=  -- a paused cluster frees no permit
      v_claimed.limited AND v_cluster.max_concurrency IS DISTINCT FROM 0;
    passed.again := v_claimed.again;

    IF pg_stat_get_xact_tuples_returned(v_index) - pg_stat_get_xact_tuples_fetched(v_index)
      - v_dead > 4000
    THEN
      p_report := p_report || '{"far": true}';
    END IF;
    IF v_claimed.firsts <> '{}' OR v_rooms.held <> '{}' THEN
      p_report := jsonb_build_object(
        'firsts', v_claimed.firsts,
        'held', v_rooms.held,
        'looked_at', extract(epoch FROM p_wanted.now)
      ) || p_report;
    END IF;
  END IF;

  -- Permits that were freed here and not used again: nothing else wakes other workers for them. No
  -- worker can use them while the cluster is paused.
  IF v_capped AND p_freed <> '{}' AND coalesce(v_cluster.max_concurrency > 0, true) THEN
    v_used := ARRAY(SELECT c.queue_name FROM unnest(claims) AS c WHERE c.kind = 'start');
    IF v_cluster.max_concurrency IS NOT NULL THEN  -- other workers' queues use the same permits
      IF cardinality(p_freed) > cardinality(v_used)
        AND horsies_count_due(
          ARRAY(SELECT l.queue_name::text FROM horsies_limits l WHERE l.queue_name <> '*'),
          '{sync,async}', 1, p_wanted.cursors, p_wanted.behind) > 0
      THEN
        PERFORM pg_notify(p_wanted.channel || '_new', '0 *');
      END IF;
    ELSE
      FOREACH v_limit IN ARRAY v_limits LOOP
        IF (v_limit.max_concurrency > 0 OR v_limit.partition_max_concurrency IS NOT NULL)
          AND cardinality(array_positions(p_freed, v_limit.queue_name::text))
            > cardinality(array_positions(v_used, v_limit.queue_name::text))
          AND horsies_count_due(
            ARRAY[v_limit.queue_name], '{sync,async}', 1, p_wanted.cursors, p_wanted.behind) > 0
        THEN
          PERFORM pg_notify(p_wanted.channel || '_new', '0 ' || v_limit.queue_name);
        END IF;
      END LOOP;
    END IF;
  END IF;

  passed.kind := 'whole';
  passed.report := nullif(p_report, '{}');
END
$$;
