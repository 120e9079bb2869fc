-- Locks the task that alone may start in its partition, so that other tasks of the partition can be
-- parked: a transaction that ends it outside of a pass then sees them and unparks the next one.
-- Returns: false if another transaction has locked it, which may be ending it, or if it has left
-- the order; then it notifies the workers, which look again soon.
-- Locks: the row, skipping a locked one.
CREATE OR REPLACE FUNCTION horsies_lock_head(p_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM FROM horsies_tasks t
  WHERE t.id = p_id AND (t.finished_at IS NULL OR t.order_stop IS NOT NULL)
  FOR NO KEY UPDATE SKIP LOCKED;

  IF FOUND THEN
    RETURN true;
  END IF;

  PERFORM pg_notify(horsies_channel() || '_new', 'stalled soon ' || p_id);
  RETURN false;
END
$$;
