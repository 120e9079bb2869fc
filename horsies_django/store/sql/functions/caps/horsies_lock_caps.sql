-- Takes the advisory locks under which caps are read and permits are given out, until the end of
-- the transaction. This is one lock for the whole cluster if it has a cap; otherwise one for each
-- queue with a cap or with limits per partition, in the order of their keys.
-- Paused queues need none, because nothing is claimed from them.
-- Args: p_cluster is the cap of the cluster, NULL if it has none.
-- Locks: transaction-level advisory locks.
CREATE OR REPLACE FUNCTION horsies_lock_caps(p_limits horsies_limits[], p_cluster int) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_seed bigint := 'horsies_tasks'::regclass::oid::bigint;  -- each schema has its own locks
  v_keys bigint[] := '{}';
  v_limit horsies_limits;
  v_key bigint;
BEGIN
  IF p_cluster IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock(hashtextextended('*', v_seed));
    RETURN;
  END IF;

  FOREACH v_limit IN ARRAY p_limits LOOP
    IF coalesce(
      v_limit.max_concurrency > 0,
      v_limit.partition_max_concurrency IS NOT NULL OR v_limit.partition_local_limit IS NOT NULL
    ) THEN
      v_keys := v_keys || hashtextextended(v_limit.queue_name, v_seed);
    END IF;
  END LOOP;

  IF cardinality(v_keys) > 1 THEN
    v_keys := ARRAY(SELECT k.key FROM unnest(v_keys) AS k (key) ORDER BY k.key);
  END IF;

  FOREACH v_key IN ARRAY v_keys LOOP
    PERFORM pg_advisory_xact_lock(v_key);
  END LOOP;
END
$$;
