-- Lets a node that waits take a signal.
-- Moves WAITING -> COMPLETED.
-- Locks: the row of the signal; the caller holds the lock of the run. Index: primary keys.
CREATE OR REPLACE FUNCTION horsies_take_signal(p_workflow uuid, p_number bigint, p_signal uuid, p_now timestamptz) RETURNS void
LANGUAGE sql VOLATILE AS $$
  WITH taken AS (
    UPDATE horsies_workflow_signals s SET seen_at = coalesce(s.seen_at, p_now), used_at = p_now, node = p_number
    WHERE s.id = p_signal RETURNING s.data
  )
  UPDATE horsies_workflow_nodes n SET status = 'COMPLETED', finished_at = p_now, value = t.data
  FROM taken t WHERE n.workflow_id = p_workflow AND n.number = p_number
$$;
