-- Unparks the first tasks of partitions that have room again. In each lane it unparks as many tasks
-- as permits are free, because either lane may have a slot. It passes over tasks that may not start
-- because of their run, because they would not use the permit.
-- In a partition in which one task alone may start, it unparks this task. If this task failed and
-- cancels the tasks behind it, these are cancelled first, 10,000 in all.
-- If it has left tasks of a partition, because they are locked or too many, it notifies the id of
-- one of them: a worker calls horsies_unpark_stalled with it, soon or at once. The key is not sent:
-- it contains arguments, and any role may LISTEN.
-- Call it under the advisory locks of the queues: only then are tasks visible that another pass is
-- parking.
-- Args:
--   p_limits: the limits of queues; queues without limits per partition count for nothing.
--   p_queues, p_keys: a queue and a partition for each permit that became free; NULL keys count for
--     nothing.
--   p_permits: how many permits became free for each of these; NULL for one.
-- Returns: how many tasks it has unparked and cancelled.
-- Moves: as horsies_cancel_behind.
-- Locks: the rows that it unparks, skipping locked ones; see horsies_cancel_behind.
-- Index: horsies_tasks_parked, horsies_tasks_order.
CREATE OR REPLACE FUNCTION horsies_unpark(
  p_limits horsies_limits[], p_queues text[], p_keys text[], p_permits int[] DEFAULT NULL
) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  c_cancels CONSTANT int := 10000;
  c_told CONSTANT int := 100;  -- partitions; the sweep finds the others
  v_names text[] := ARRAY(
    SELECT l.queue_name
    FROM unnest(p_limits) AS l
    CROSS JOIN LATERAL (  -- as in horsies_waiting_queues
      SELECT FROM horsies_tasks p
      WHERE p.queue_name = l.queue_name
        AND p.claimed_by IS NULL
        AND p.finished_at IS NULL
        AND p.parked
      LIMIT 1
    ) AS p
    WHERE (l.partition_max_concurrency IS NOT NULL OR l.partition_local_limit IS NOT NULL)
      AND l.queue_name = ANY (p_queues)
  );
  v_heads uuid[];
  v_closed text[];  -- their queues and keys: partitions in which one task alone may start
  v_parked uuid[];  -- of v_heads
  v_cancels uuid[];  -- the ones of v_heads that cancel others
  v_queues text[];  -- of the other partitions
  v_keys text[];
  v_permits int[];
  v_head uuid;
  v_many int;
  v_cancelled int := 0;
  v_done uuid[];
  v_lanes text[];  -- lane, queue and key of each in v_done
BEGIN
  IF v_names = '{}' AND NOT EXISTS (
    SELECT FROM unnest(p_limits) AS l WHERE l.partition_policy = 'cancel'
  ) THEN
    RETURN 0;
  END IF;

  LOOP  -- several failed tasks may come one after another
    SELECT
      coalesce(array_agg(h.id), '{}'),
      coalesce(array_agg(u.queue || ' ' || u.key), '{}'),
      coalesce(array_agg(h.id) FILTER (WHERE h.parked), '{}'),
      array_agg(h.id) FILTER (WHERE h.order_stop = 'cancel')
    INTO v_heads, v_closed, v_parked, v_cancels
    FROM unnest(p_queues, p_keys) AS u (queue, key)
    JOIN unnest(p_limits) AS l ON l.queue_name = u.queue
    CROSS JOIN LATERAL horsies_order_head(l, u.key) AS h;

    EXIT WHEN v_cancels IS NULL OR v_cancelled >= c_cancels;

    v_many := v_cancelled;
    FOREACH v_head IN ARRAY v_cancels LOOP
      v_cancelled := v_cancelled
        + horsies_cancel_behind(v_head, least(c_cancels - v_cancelled, 1000), horsies_channel());
    END LOOP;

    -- all of them are locked, or the tasks that they cancel
    EXIT WHEN v_cancelled = v_many AND NOT EXISTS (
      SELECT FROM horsies_tasks t WHERE t.id = ANY (v_cancels) AND t.order_stop IS NULL
    );
  END LOOP;

  SELECT array_agg(f.queue), array_agg(f.key), array_agg(f.permits)
  INTO v_queues, v_keys, v_permits
  FROM (
    SELECT u.queue, u.key, sum(coalesce(u.permits, 1))::int AS permits
    FROM unnest(p_queues, p_keys, p_permits) AS u (queue, key, permits)
    WHERE u.queue = ANY (v_names)
      AND u.key IS NOT NULL
      AND (u.queue || ' ' || u.key) <> ALL (v_closed)
    GROUP BY u.queue, u.key
  ) AS f;

  WITH unparked AS (
    UPDATE horsies_tasks t
    SET parked = false
    WHERE t.parked AND t.id = ANY (
      ARRAY(
        SELECT head.id
        FROM unnest(v_queues, v_keys, v_permits) AS freed (queue, key, permits)
        CROSS JOIN (VALUES ('sync'), ('async')) AS lanes (lane)
        CROSS JOIN LATERAL (
          SELECT h.id
          FROM horsies_tasks h
          WHERE h.queue_name = freed.queue
            AND h.partition_key = freed.key
            AND h.lane = lanes.lane
            AND h.claimed_by IS NULL
            AND h.finished_at IS NULL
            AND h.parked
            AND (
              h.workflow_id IS NULL
              OR NOT EXISTS (SELECT FROM horsies_forbidding(h.workflow_id, h.node))
            )
          ORDER BY h.priority, h.enqueued_at, h.id
          LIMIT freed.permits
          FOR NO KEY UPDATE SKIP LOCKED
        ) AS head
      )
      || ARRAY(
        SELECT h.id
        FROM horsies_tasks h
        WHERE h.id = ANY (v_parked)
        FOR NO KEY UPDATE SKIP LOCKED
      )
    )
    RETURNING t.id, t.lane || ' ' || t.queue_name || ' ' || t.partition_key AS name
  )
  SELECT coalesce(array_agg(u.id), '{}'), coalesce(array_agg(u.name), '{}')
  INTO v_done, v_lanes
  FROM unparked u;

  PERFORM pg_notify(horsies_channel() || '_new', 'stalled ' || s.how || ' ' || s.id)
  FROM (
    SELECT
      CASE
        WHEN c.id = ANY (v_cancels) AND v_cancelled >= c_cancels THEN 'now'
        ELSE 'soon'
      END AS how,
      c.id
    FROM unnest(v_heads) AS c (id)
    WHERE c.id = ANY (v_cancels) OR (c.id = ANY (v_parked) AND c.id <> ALL (v_done))
    UNION
    SELECT 'soon', missed.id
    FROM unnest(v_queues, v_keys, v_permits) AS freed (queue, key, permits)
    CROSS JOIN (VALUES ('sync'), ('async')) AS lanes (lane)
    CROSS JOIN LATERAL (
      SELECT h.id
      FROM horsies_tasks h
      WHERE h.queue_name = freed.queue
        AND h.partition_key = freed.key
        AND h.lane = lanes.lane
        AND h.claimed_by IS NULL
        AND h.finished_at IS NULL
        AND h.parked
        AND (
          h.workflow_id IS NULL
          OR NOT EXISTS (SELECT FROM horsies_forbidding(h.workflow_id, h.node))
        )
      ORDER BY h.priority, h.enqueued_at, h.id
      LIMIT 1
    ) AS missed
    WHERE freed.permits > cardinality(
      array_positions(v_lanes, lanes.lane || ' ' || freed.queue || ' ' || freed.key)
    )
    LIMIT c_told
  ) AS s;

  RETURN cardinality(v_done) + v_cancelled;
END
$$;
