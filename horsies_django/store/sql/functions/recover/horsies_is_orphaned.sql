-- Returns whether the worker that holds a task is dead, or has no heartbeat row although it claimed
-- the task before p_before. A claim of the future was made before the clock was set back, and so
-- counts as one before p_before; so does a claim without a time.
CREATE OR REPLACE FUNCTION horsies_is_orphaned(
  p_worker uuid, p_claimed_at timestamptz, p_before timestamptz
) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce(
    (SELECT b.died_at IS NOT NULL FROM horsies_heartbeats b WHERE b.id = p_worker),
    p_claimed_at < p_before OR p_claimed_at > clock_timestamp(),
    true
  );
END
$$;
