-- What each partition of a queue holds, in all and on one worker, and what the pass of p_now has taken ahead without holding it (soft
-- mode): its next round must not take as much again. Tasks keyed by an older rule are keyed anew on the way.
-- Locks: none; exact only under the queue's advisory lock. Index: horsies_tasks_holding.
CREATE FUNCTION horsies_loads_v1(p_limits horsies_limits, p_worker uuid, p_claimed boolean, p_now timestamptz)
RETURNS TABLE (key text, held int, here int, ahead int) LANGUAGE plpgsql VOLATILE ROWS 100 SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
  RETURN QUERY
  SELECT CASE WHEN t.partition_version = p_limits.partition_version THEN t.partition_key
              ELSE horsies_partition_v1(p_limits.partition_by_args, p_limits.partition_by_task, t.kwargs, t.task_name) END,
         (count(*) FILTER (WHERE h.holds))::int, (count(*) FILTER (WHERE h.holds AND t.claimed_by = p_worker))::int,
         (count(*) FILTER (WHERE NOT h.holds))::int
  FROM horsies_tasks t
  CROSS JOIN LATERAL (SELECT horsies_holds_v1(t.status, t.claim_expires_at, p_claimed, p_now) AS holds) AS h
  WHERE t.queue_name = p_limits.queue_name AND t.claimed_by IS NOT NULL AND t.finished_at IS NULL
    AND (h.holds OR (t.claimed_by = p_worker AND t.claimed_at = p_now))
  GROUP BY 1;
END
$$;
