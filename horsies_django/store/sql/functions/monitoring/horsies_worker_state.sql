-- Returns whether a worker is living, stale, dead or stopped. stale: the last heartbeat of its parent process, p_beat, is older than the
-- threshold. dead: declared so by another worker, or the row of its heartbeat is gone.
CREATE OR REPLACE FUNCTION horsies_worker_state(p_stopped timestamptz, p_beat timestamptz, p_died timestamptz, p_threshold interval) RETURNS text
LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN p_stopped IS NOT NULL THEN 'stopped'
              WHEN p_beat IS NULL OR p_died IS NOT NULL THEN 'dead'
              WHEN p_beat < statement_timestamp() - p_threshold THEN 'stale'
              ELSE 'living' END
$$;
