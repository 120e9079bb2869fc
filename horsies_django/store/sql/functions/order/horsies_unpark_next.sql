-- Unparks the next task of partitions whose first task has left the order outside of a pass, and
-- wakes the workers. It wakes them even if the next task was not parked: a pass may have left it
-- while the first one was locked.
-- Args: p_queues and p_keys have a queue and a partition for each; queues without limits per
-- partition count for nothing.
-- Locks: the rows that it unparks, skipping locked ones.
-- Index: see horsies_unpark.
CREATE OR REPLACE FUNCTION horsies_unpark_next(p_queues text[], p_keys text[], p_channel text)
RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  -- reading horsies_limits would delay a change of limits until the caller's transaction ends
  v_limits horsies_limits[] := ARRAY(
    SELECT horsies_effective_limits(q)
    FROM horsies_queues q
    WHERE q.name = ANY (p_queues)
  );
BEGIN
  IF horsies_unpark(v_limits, p_queues, p_keys) > 0
    OR EXISTS (SELECT FROM unnest(v_limits) AS l WHERE l.partition_policy IS NOT NULL)
  THEN
    PERFORM pg_notify(p_channel || '_new', '0 ' || q.queue)
    FROM (SELECT DISTINCT u.queue FROM unnest(p_queues) AS u (queue)) AS q;
  END IF;
END
$$;
