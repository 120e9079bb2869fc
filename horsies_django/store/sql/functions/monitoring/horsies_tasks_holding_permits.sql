-- Returns the tasks that hold permits of a queue ('*': of any queue), the oldest claim first,
-- p_many at most.
-- Index: horsies_tasks_holding.
CREATE OR REPLACE FUNCTION horsies_tasks_holding_permits(
  p_queue text, p_many int, p_now timestamptz
) RETURNS SETOF horsies_tasks LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
  RETURN QUERY
  SELECT t.*
  FROM horsies_tasks t
  WHERE (t.queue_name = p_queue OR p_queue = '*')
    AND t.claimed_by IS NOT NULL
    AND t.finished_at IS NULL
    AND horsies_holds_permit(t.status, t.claim_expires_at, true, p_now)
  ORDER BY t.claimed_at, t.id
  LIMIT p_many;
END
$$;
