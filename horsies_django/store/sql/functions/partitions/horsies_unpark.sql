-- Unparks the first tasks of partitions that have room again, of the queues in p_limits with limits per partition: p_keys has a key for each
-- permit of a queue in p_queues that became free, or p_permits says how many; NULL keys count for nothing. In each lane as many as permits
-- are free, because either lane may have a slot. Tasks that their run does not let start would not use the permit. Returns how many.
-- Where one task alone may start, this one is unparked; if it failed and cancels those behind it, this happens first, 1,000 at a time.
-- Call it under the queues' advisory locks: tasks that another pass is parking are visible only then.
-- Locks: the rows that it unparks, skipping locked ones. Index: horsies_tasks_parked, horsies_tasks_order.
CREATE OR REPLACE FUNCTION horsies_unpark(p_limits horsies_limits[], p_queues text[], p_keys text[], p_permits int[] DEFAULT NULL) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_names text[] := ARRAY(
    SELECT l.queue_name FROM unnest(p_limits) AS l CROSS JOIN LATERAL (  -- as in horsies_waiting_queues
      SELECT FROM horsies_tasks p WHERE p.queue_name = l.queue_name AND p.claimed_by IS NULL AND p.finished_at IS NULL AND p.parked LIMIT 1) AS p
    WHERE (l.partition_max_concurrency IS NOT NULL OR l.partition_local_limit IS NOT NULL) AND l.queue_name = ANY (p_queues));
  v_heads uuid[] := '{}';
  v_closed text[] := '{}';  -- partitions in which one task alone may start
  v_cancels uuid[];
  v_count int;
BEGIN
  IF v_names = '{}' AND NOT EXISTS (SELECT FROM unnest(p_limits) AS l WHERE l.partition_policy = 'cancel') THEN
    RETURN 0;
  END IF;
  FOR v_try IN 1 .. 10 LOOP  -- several that failed may come one after another
    SELECT coalesce(array_agg(h.id), '{}'), coalesce(array_agg(u.queue || ' ' || u.key), '{}'),
           array_agg(h.id) FILTER (WHERE h.order_stop = 'cancel')
    INTO v_heads, v_closed, v_cancels
    FROM unnest(p_queues, p_keys) AS u (queue, key) JOIN unnest(p_limits) AS l ON l.queue_name = u.queue
    CROSS JOIN LATERAL horsies_order_head(l, u.key) AS h;
    EXIT WHEN v_cancels IS NULL;
    PERFORM horsies_cancel_behind(c.id, 1000, horsies_channel()) FROM unnest(v_cancels) AS c (id);
  END LOOP;
  UPDATE horsies_tasks t SET parked = false
  WHERE t.parked AND t.id = ANY (ARRAY(
    SELECT head.id
    FROM (
      SELECT u.queue, u.key, sum(coalesce(u.permits, 1)) AS permits FROM unnest(p_queues, p_keys, p_permits) AS u (queue, key, permits)
      WHERE u.queue = ANY (v_names) AND u.key IS NOT NULL AND (u.queue || ' ' || u.key) <> ALL (v_closed) GROUP BY u.queue, u.key
    ) AS freed
    CROSS JOIN (VALUES ('sync'), ('async')) AS lanes (lane)
    CROSS JOIN LATERAL (
      SELECT h.id FROM horsies_tasks h
      WHERE h.queue_name = freed.queue AND h.partition_key = freed.key AND h.lane = lanes.lane
        AND h.claimed_by IS NULL AND h.finished_at IS NULL AND h.parked
        AND (h.workflow_id IS NULL OR NOT EXISTS (SELECT FROM horsies_forbidding(h.workflow_id, h.node)))
      ORDER BY h.priority, h.enqueued_at, h.id LIMIT freed.permits FOR NO KEY UPDATE SKIP LOCKED
    ) AS head) || v_heads);
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END
$$;
