-- Unparks the first tasks of partitions in which permits became free outside a pass, and wakes the workers of their queues.
-- Locks: the queues' advisory locks; task rows, skipping locked ones. Index: horsies_tasks_parked.
CREATE FUNCTION horsies_pass_on_permits(p_channel text, p_queues text[], p_keys text[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_limits horsies_limits[];
  v_cluster int;
BEGIN
  SELECT array_agg(l) FILTER (WHERE l.partition_max_concurrency IS NOT NULL OR l.partition_local_limit IS NOT NULL),
         min(l.max_concurrency) FILTER (WHERE l.queue_name = '*')
  INTO v_limits, v_cluster FROM horsies_limits l WHERE l.queue_name = ANY (p_queues || '*'::text);
  IF v_limits IS NOT NULL THEN
    PERFORM horsies_lock_caps(v_limits, v_cluster);
    PERFORM horsies_unpark(f.queue, array_agg(f.key), array_agg(f.permits))
    FROM (SELECT u.queue, u.key, count(*)::int AS permits FROM unnest(p_queues, p_keys) AS u (queue, key)
          WHERE u.key IS NOT NULL GROUP BY u.queue, u.key) AS f
    WHERE EXISTS (SELECT FROM unnest(v_limits) AS l WHERE l.queue_name = f.queue) GROUP BY f.queue;
  END IF;
  PERFORM pg_notify(p_channel || '_new', '0 ' || q.queue) FROM (SELECT DISTINCT u.queue FROM unnest(p_queues) AS u (queue)) AS q;
END
$$;
