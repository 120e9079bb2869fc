-- Lets the next task of partitions start whose first one has left the order outside of a pass: it is unparked, and workers are woken, also if
-- it was not parked, because a pass left it while the first one was locked. p_queues and p_keys: a queue and a partition for each; queues
-- without limits per partition count for nothing.
-- Locks: the rows that it unparks, skipping locked ones. Index: see horsies_unpark.
CREATE OR REPLACE FUNCTION horsies_unpark_next(p_queues text[], p_keys text[], p_channel text) RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_limits horsies_limits[] := ARRAY(  -- reading horsies_limits would delay a change of limits until the caller's transaction ends
    SELECT horsies_effective_limits(q) FROM horsies_queues q WHERE q.name = ANY (p_queues));
BEGIN
  IF horsies_unpark(v_limits, p_queues, p_keys) > 0 OR EXISTS (SELECT FROM unnest(v_limits) AS l WHERE l.partition_policy IS NOT NULL) THEN
    PERFORM pg_notify(p_channel || '_new', '0 ' || q.queue) FROM (SELECT DISTINCT u.queue FROM unnest(p_queues) AS u (queue)) AS q;
  END IF;
END
$$;
