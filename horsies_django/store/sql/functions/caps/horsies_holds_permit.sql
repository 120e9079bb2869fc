-- Returns whether a task in flight holds a permit: it is running, or it is claimed, claims hold
-- permits, and its lease has not ended.
-- Args: p_claimed says that claims hold permits (hard mode).
CREATE OR REPLACE FUNCTION horsies_holds_permit(
  p_status text, p_claim_expires_at timestamptz, p_claimed boolean, p_now timestamptz
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT p_status = 'RUNNING'
    OR (p_claimed AND p_status = 'CLAIMED' AND coalesce(p_claim_expires_at > p_now, true))
$$;
