-- Settles, releases, starts and claims, in one round trip and one transaction: the pass of a
-- worker; see docs/explanation/the-pass.md. The pass is short if it only settles and claims,
-- nothing that it touches has a limit, and it claims from p_wanted.news alone, or not at all: that
-- claim is one statement, which walks over tasks that are due in the future, late, or whose run
-- forbids their start.
-- With cold CPU caches each statement, call and expression is slow: nothing is evaluated without
-- need.
-- Args:
--   p_expired_leases: whether to release claims whose lease ended, too.
-- Returns: the claims, and a last row, see horsies_passed. The report has by name what
-- horsies_settle and horsies_whole_pass say; far: the short claim read more than 64 pages of its
-- index.
-- Locks: task rows, skipping locked ones; see horsies_whole_pass.
-- Index: horsies_tasks_claim, then the primary key.
CREATE OR REPLACE FUNCTION horsies_pass(
  p_wanted horsies_wanted, p_outcomes jsonb, p_releases jsonb, p_starts jsonb,
  p_expired_leases boolean
) RETURNS SETOF horsies_passed LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  c_room CONSTANT int := 8388608;  -- characters of arguments that a pass claims
  v_settled record;
  v_plain boolean;
  v_freed text[];
  v_keys text[];
  v_now timestamptz;
  v_whole record;
  v_sent text[];
  v_claimed text[];
  v_count int;
  v_pages bigint;
  v_row horsies_passed;
  v_set text := set_config('horsies.pass', 'on', true);  -- see horsies_check_task
BEGIN
  IF p_outcomes IS NOT NULL THEN
    v_settled := horsies_settle(
      p_wanted.worker, p_outcomes, p_wanted.max_crashes, p_wanted.channel, p_wanted.news,
      p_wanted.max_bytes, p_wanted.now);
    v_plain := v_settled.plain;
    v_row.report := v_settled.report;
    v_sent := v_settled.sent;
  ELSE
    v_plain := NOT EXISTS (
        SELECT
        FROM horsies_limits l
        WHERE l.queue_name IN (p_wanted.news, '*')
          AND NOT ((
            l.max_concurrency, l.local_limit, l.partition_max_concurrency, l.partition_local_limit
          ) IS NULL)
      )
      AND (
        p_wanted.news IS NULL
        OR EXISTS (SELECT FROM horsies_limits l WHERE l.queue_name = p_wanted.news)
      )
      AND NOT EXISTS (
        SELECT FROM horsies_heartbeats b WHERE b.id = p_wanted.worker AND b.died_at IS NOT NULL
      );
  END IF;

  IF v_plain
    AND p_releases IS NULL
    AND p_starts IS NULL
    AND NOT p_expired_leases
    AND p_wanted.prefetch = 0
    AND (
      p_wanted.sync + p_wanted.async = 0
      OR (
        p_wanted.news IS NOT NULL
        AND p_wanted.batch = 0
        AND p_wanted.grace IS NULL
        AND p_wanted.cursors IS NULL
        AND p_wanted.sync + p_wanted.async <= p_wanted.total
      )
    )
  THEN
    IF p_wanted.sync + p_wanted.async > 0 THEN
      v_now := coalesce(p_wanted.now, clock_timestamp());
      v_pages := pg_stat_get_xact_blocks_fetched('horsies_tasks_claim'::regclass);

      RETURN QUERY
        WITH found AS MATERIALIZED (
          SELECT f.id, f.size
          FROM (VALUES ('sync', p_wanted.sync), ('async', p_wanted.async)) AS l (lane, slots)
          CROSS JOIN LATERAL (
            SELECT t.id, horsies_most_bytes(t.kwargs) AS size
            FROM horsies_tasks t
            WHERE t.queue_name = p_wanted.news
              AND t.lane = l.lane
              AND t.enqueued_at <= v_now
              AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
              AND (t.good_until IS NULL OR t.good_until > v_now)
              AND (t.workflow_id IS NULL
                   OR NOT EXISTS (SELECT FROM horsies_forbidding(t.workflow_id, t.node)))
            ORDER BY t.priority, t.enqueued_at, t.id
            LIMIT l.slots
            FOR NO KEY UPDATE SKIP LOCKED
          ) AS f
          WHERE l.slots > 0
        ),
        claimed AS (
          UPDATE horsies_tasks t
          SET
            status = 'RUNNING',
            claimed_by = p_wanted.worker,
            claimed_at = v_now,
            started_at = v_now,
            claim_generation = t.claim_generation % 2147483647 + 1
          WHERE t.claimed_by IS NULL
            AND t.finished_at IS NULL
            AND t.id = ANY ((  -- a volatile call is no index condition, but a sub-select is
              SELECT
                CASE WHEN sum(found.size) > c_room
                  THEN (horsies_within(array_agg(found.id), c_room)).ids
                  ELSE array_agg(found.id)
                END
              FROM found
            )::uuid[])
          RETURNING t.priority, t.enqueued_at, horsies_claimed('start', t) AS claim
        )
        SELECT (c.claim).*
        FROM (
          SELECT c.claim FROM claimed c ORDER BY c.priority, c.enqueued_at, (c.claim).id
        ) AS c;

      GET DIAGNOSTICS v_count = ROW_COUNT;
      IF current_setting('horsies.cut', true) = 'on' THEN
        v_row.again := true;
        PERFORM set_config('horsies.cut', '', true);
      END IF;
      IF pg_stat_get_xact_blocks_fetched('horsies_tasks_claim'::regclass) - v_pages > 64 THEN
        v_row.report := coalesce(v_row.report::jsonb, '{}') || '{"far": true}';
      END IF;
    END IF;
    v_row.kind := 'short';
  ELSE
    IF p_outcomes IS NOT NULL THEN
      v_freed := v_settled.queues;
      v_keys := v_settled.keys;
    END IF;
    v_whole := horsies_whole_pass(
      p_wanted, p_releases, p_starts, p_expired_leases, coalesce(v_freed, '{}'),
      coalesce(v_keys, '{}'), coalesce(v_row.report::jsonb, '{}'));
    IF v_whole.claims IS NOT NULL THEN
      FOREACH v_row IN ARRAY v_whole.claims LOOP
        RETURN NEXT v_row;
      END LOOP;
    END IF;
    v_row := v_whole.passed;
    p_wanted.durable := v_whole.durable;
  END IF;
  RETURN NEXT v_row;

  IF v_sent <> '{}' THEN  -- workers are notified of tasks that were sent here and not claimed
    IF v_row.kind = 'short' THEN
      v_claimed := array_fill(p_wanted.news, ARRAY[coalesce(v_count, 0)]);
    ELSE
      v_claimed := ARRAY(
        SELECT c.queue_name FROM unnest(v_whole.claims) AS c WHERE c.kind = 'start');
    END IF;

    PERFORM pg_notify(p_wanted.channel || '_new', extract(epoch FROM now()) || ' ' || s.queue)
    FROM (
      SELECT u.queue, count(*) AS many FROM unnest(v_sent) AS u (queue) GROUP BY u.queue
    ) AS s
    WHERE s.many > cardinality(array_positions(v_claimed, s.queue));
  END IF;

  IF NOT p_wanted.durable THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
  v_set := set_config('horsies.pass', '', true);
END
$$;
