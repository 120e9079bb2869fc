-- Declares workers dead whose parent process sent no heartbeat for p_threshold.
--
-- After an outage, or a jump of the database's clock, all heartbeats are old and no worker has
-- died. So no worker is declared dead shortly after the server started, nor unless the heartbeat of
-- the caller is younger than p_fresh by the same reading of the clock. A worker notices a jump at
-- its next heartbeat and then does not call this function for the threshold: by then all living
-- workers have sent heartbeats by the new clock. A heartbeat of the future is of a worker that died
-- before the clock was set back.
--
-- Args: p_worker: the caller; NULL for the reapers of release 0.1, which do not name themselves:
--   then its heartbeat is not checked, and heartbeats of the future do not count as old.
-- Returns: the ids of these workers.
-- Locks: the rows of the dead.
-- Index: horsies_heartbeats_parents, primary key.
CREATE OR REPLACE FUNCTION horsies_judge(p_worker uuid, p_threshold interval, p_fresh interval)
RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_latest timestamptz := 'infinity';
BEGIN
  IF pg_postmaster_start_time() >= v_now - p_threshold THEN
    RETURN;
  END IF;

  IF p_worker IS NOT NULL THEN
    PERFORM
    FROM horsies_heartbeats own
    WHERE own.id = p_worker
      AND own.died_at IS NULL
      AND own.sent_at BETWEEN v_now - p_fresh AND v_now + p_fresh;

    IF NOT FOUND THEN
      RETURN;
    END IF;

    v_latest := v_now + p_threshold;
  END IF;

  RETURN QUERY
  UPDATE horsies_heartbeats b
  SET died_at = v_now
  WHERE b.role = 'claimer'
    AND b.died_at IS NULL
    AND (b.sent_at < v_now - p_threshold OR b.sent_at > v_latest)
  RETURNING b.id;
END
$$;
