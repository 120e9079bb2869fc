-- Returns how many permits partitions of a queue hold, on all workers (held) and on one (here), and how many tasks the pass of p_now
-- prefetched without permits (ahead, in soft mode), which its next round must not take again.
-- The keys of tasks with an older rule are computed again for the count. Only the partitions in p_keys are counted.
-- Locks: none; exact only under the queue's advisory lock. Index: horsies_tasks_holding.
CREATE FUNCTION horsies_partition_usage(p_limits horsies_limits, p_keys text[], p_worker uuid, p_claimed boolean, p_now timestamptz)
RETURNS TABLE (key text, held int, here int, ahead int) LANGUAGE plpgsql VOLATILE ROWS 100
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN QUERY
  SELECT asked.key, load.held, load.here, load.ahead
  FROM unnest(p_keys) AS asked (key)
  CROSS JOIN LATERAL (
    SELECT (count(*) FILTER (WHERE h.holds))::int AS held,
           (count(*) FILTER (WHERE h.holds AND h.claimed_by = p_worker))::int AS here,
           (count(*) FILTER (WHERE NOT h.holds AND h.claimed_by = p_worker AND h.claimed_at = p_now))::int AS ahead
    FROM (
      SELECT t.claimed_by, t.claimed_at, horsies_holds_permit(t.status, t.claim_expires_at, p_claimed, p_now) AS holds
      FROM (
        SELECT n.* FROM horsies_tasks n
        WHERE n.queue_name = p_limits.queue_name AND n.claimed_by IS NOT NULL AND n.finished_at IS NULL
          AND n.partition_version = p_limits.partition_version AND n.partition_key = asked.key
        UNION ALL
        SELECT o.* FROM horsies_tasks o
        WHERE o.queue_name = p_limits.queue_name AND o.claimed_by IS NOT NULL AND o.finished_at IS NULL
          AND o.partition_version < p_limits.partition_version
          AND horsies_partition_key(p_limits.partition_by_args, p_limits.partition_by_task, o.kwargs, o.task_name, o.codec) = asked.key
        UNION ALL
        SELECT o.* FROM horsies_tasks o
        WHERE o.queue_name = p_limits.queue_name AND o.claimed_by IS NOT NULL AND o.finished_at IS NULL
          AND o.partition_version IS NULL
          AND horsies_partition_key(p_limits.partition_by_args, p_limits.partition_by_task, o.kwargs, o.task_name, o.codec) = asked.key
      ) AS t
    ) AS h
  ) AS load;
END
$$;
