-- Returns the state of a worker: living, stale, dead or stopped. It is stale if the last heartbeat
-- of its parent process is older than the threshold. It is dead if another worker has declared it
-- dead, or if the row of its heartbeat is gone.
-- Args: p_beat is the time of the last heartbeat of its parent process.
CREATE OR REPLACE FUNCTION horsies_worker_state(
  p_stopped timestamptz, p_beat timestamptz, p_died timestamptz, p_threshold interval
) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE
    WHEN p_stopped IS NOT NULL THEN 'stopped'
    WHEN p_beat IS NULL OR p_died IS NOT NULL THEN 'dead'
    WHEN p_beat < statement_timestamp() - p_threshold THEN 'stale'
    ELSE 'living'
  END
$$;
