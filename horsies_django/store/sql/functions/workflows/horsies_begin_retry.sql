-- Begins a retry of runs: they run again, without a good_until, as a task that is retried does.
-- horsies_retry_part does the rest.
--
-- Moves: runs -> RUNNING.
-- Locks: rows of runs; the caller holds the lock of their parent run, if they have one.
CREATE OR REPLACE FUNCTION horsies_begin_retry(p_runs uuid[], p_now timestamptz)
RETURNS void LANGUAGE sql VOLATILE AS $$
  UPDATE horsies_workflows w
  SET
    status = 'RUNNING',
    resuming = true, retrying = 0, owed_at = p_now,
    finished_at = NULL, advanced_at = NULL, good_until = NULL,
    error_node = NULL, error_code = NULL, result = NULL
  WHERE w.id = ANY (p_runs)
$$;
