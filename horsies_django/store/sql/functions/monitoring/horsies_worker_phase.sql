-- Returns the state of a worker, as horsies_worker_state does, or 'stopping' if it would be living
-- but takes no more tasks. This is the one rule by which workers are living: their heartbeat is
-- younger than the threshold, and they are not stopping.
CREATE OR REPLACE FUNCTION horsies_worker_phase(
  p_stopping timestamptz, p_stopped timestamptz, p_beat timestamptz, p_died timestamptz,
  p_threshold interval
) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE
    WHEN p_stopping IS NOT NULL
      AND horsies_worker_state(p_stopped, p_beat, p_died, p_threshold) = 'living'
      THEN 'stopping'
    ELSE horsies_worker_state(p_stopped, p_beat, p_died, p_threshold)
  END
$$;
