-- How many more tasks of a queue may start, for one worker: under the queue's cap and under its limit per worker. NULL: no limit.
-- Locks: none; exact only under the queue's advisory lock. Index: horsies_tasks_holding.
CREATE FUNCTION horsies_room_v1(p_limits horsies_limits, p_worker uuid, p_claimed boolean, p_now timestamptz) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_held int;
  v_here int;
BEGIN
  IF p_limits.max_concurrency IS NULL AND p_limits.local_limit IS NULL THEN
    RETURN NULL;
  END IF;
  SELECT count(*), count(*) FILTER (WHERE t.claimed_by = p_worker) INTO v_held, v_here
  FROM horsies_tasks t
  WHERE t.queue_name = p_limits.queue_name AND t.claimed_by IS NOT NULL AND t.finished_at IS NULL
    AND horsies_holds_v1(t.status, t.claim_expires_at, p_claimed, p_now);
  RETURN greatest(0, least(p_limits.max_concurrency - v_held, p_limits.local_limit - v_here));
END
$$;
