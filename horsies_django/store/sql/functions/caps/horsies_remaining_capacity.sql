-- Returns how many more tasks of a queue may start on a worker, under the queue's cap and its limit per worker. NULL: no limit.
-- moments: when the tasks in flight were claimed, for queues with a cap: the first eight times, then one from which on all others were
-- (p_now if there are none). Claims under a cap are serialized, so later claims have later times and the next count reads only these
-- (p_moments; empty: read all; NULL: read all, return none). Times after p_now are ignored: the clock was set back.
-- This skips dead index entries that vacuum cannot remove yet, see docs/explanation/the-pass.md: for tasks without a partition only these
-- times are read, for others all from the first one on.
-- Locks: none; exact only under the queue's advisory lock. Index: horsies_tasks_holding.
CREATE FUNCTION horsies_remaining_capacity(p_limits horsies_limits, p_worker uuid, p_claimed boolean, p_now timestamptz,
                             p_moments timestamptz[] DEFAULT NULL, OUT room int, OUT moments timestamptz[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  c_singly CONSTANT int := 8;
  v_version int := coalesce(p_limits.partition_version, 0);
  v_since timestamptz;
  v_oldest timestamptz;
  v_load record;
BEGIN
  IF p_limits.max_concurrency IS NULL AND p_limits.local_limit IS NULL THEN
    RETURN;
  END IF;
  IF p_moments[cardinality(p_moments)] <= p_now THEN
    v_since := p_moments[cardinality(p_moments)];
    v_oldest := p_moments[1];
    moments := p_moments[1 : cardinality(p_moments) - 1];
  END IF;
  IF v_since IS NULL THEN
    SELECT count(*) FILTER (WHERE h.holds) AS held, count(*) FILTER (WHERE h.holds AND h.claimed_by = p_worker) AS here,
           array_agg(DISTINCT h.claimed_at) FILTER (WHERE p_moments IS NOT NULL) AS moments
    INTO v_load
    FROM (
      SELECT t.claimed_by, t.claimed_at, horsies_holds_permit(t.status, t.claim_expires_at, p_claimed, p_now) AS holds
      FROM horsies_tasks t WHERE t.queue_name = p_limits.queue_name AND t.claimed_by IS NOT NULL AND t.finished_at IS NULL
    ) AS h;
  ELSE
    SELECT count(*) FILTER (WHERE h.holds) AS held, count(*) FILTER (WHERE h.holds AND h.claimed_by = p_worker) AS here,
           array_agg(DISTINCT h.claimed_at) AS moments
    INTO v_load
    FROM (
      SELECT t.claimed_by, t.claimed_at, horsies_holds_permit(t.status, t.claim_expires_at, p_claimed, p_now) AS holds
      FROM (
        SELECT n.* FROM horsies_tasks n
        WHERE n.queue_name = p_limits.queue_name AND n.claimed_by IS NOT NULL AND n.finished_at IS NULL
          AND n.partition_version = v_version AND n.partition_key IS NULL AND n.claimed_at >= v_since
        UNION ALL
        SELECT n.* FROM horsies_tasks n
        WHERE n.queue_name = p_limits.queue_name AND n.claimed_by IS NOT NULL AND n.finished_at IS NULL
          AND n.partition_version = v_version AND n.partition_key IS NULL AND n.claimed_at = ANY (moments)
        UNION ALL
        SELECT n.* FROM horsies_tasks n
        WHERE n.queue_name = p_limits.queue_name AND n.claimed_by IS NOT NULL AND n.finished_at IS NULL
          AND n.partition_version = v_version AND n.partition_key IS NOT NULL AND n.claimed_at >= v_oldest
        UNION ALL
        SELECT n.* FROM horsies_tasks n
        WHERE n.queue_name = p_limits.queue_name AND n.claimed_by IS NOT NULL AND n.finished_at IS NULL
          AND n.partition_version < v_version AND n.claimed_at >= v_oldest
        UNION ALL
        SELECT n.* FROM horsies_tasks n
        WHERE n.queue_name = p_limits.queue_name AND n.claimed_by IS NOT NULL AND n.finished_at IS NULL
          AND n.partition_version > v_version AND n.claimed_at >= v_oldest
        UNION ALL
        SELECT n.* FROM horsies_tasks n
        WHERE n.queue_name = p_limits.queue_name AND n.claimed_by IS NOT NULL AND n.finished_at IS NULL
          AND n.partition_version IS NULL AND n.claimed_at >= v_oldest
      ) AS t
    ) AS h;
  END IF;
  room := greatest(0, least(p_limits.max_concurrency - v_load.held, p_limits.local_limit - v_load.here));
  moments := CASE WHEN p_moments IS NOT NULL AND p_limits.max_concurrency IS NOT NULL THEN (v_load.moments || p_now)[1 : c_singly + 1] END;
END
$$;
