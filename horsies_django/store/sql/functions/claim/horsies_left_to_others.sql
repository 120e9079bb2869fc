-- Returns whether a worker leaves a task to others for now: it cannot run the task, which has been due for less than p_grace. Any worker
-- may take a task that is past its good_until, because it only expires.
-- Locks: none. Index: none.
CREATE FUNCTION horsies_left_to_others(p_name text, p_options jsonb, p_enqueued_at timestamptz, p_good_until timestamptz,
                                p_taker horsies_workers, p_grace interval, p_now timestamptz) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT p_enqueued_at > p_now - p_grace AND coalesce(p_good_until > p_now, true) AND NOT horsies_worker_knows(p_name, p_options, p_taker)
$$;
