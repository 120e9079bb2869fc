-- Writes the heartbeat of a worker, and returns whether it is on duty and elected. A worker that
-- was declared dead stays dead, and nothing is written.
--
-- The workers on duty look after dead workers for all: the three oldest ones with a heartbeat that
-- is younger than p_fresh. Ids of workers ascend with time. Heartbeats of the future, which stay
-- when the clock was set back, count as old. The elected workers of a team are notified of new
-- tasks: the two oldest ones and the youngest one that listen and have such a heartbeat. The
-- youngest is one of them because workers that were started together, on one machine, are of the
-- same age, and may die together.
--
-- The commit does not wait for the disk: after a crash of the server no worker is declared dead
-- until new heartbeats have been written.
--
-- Args: p_ids: the processes of the worker; NULL: only its heartbeat is written. Else its load and
--     the rows of these processes are written, too, and those of other processes are deleted.
--   p_listens: whether the worker may be elected.
-- Returns: alive: false if the worker was declared dead or its row is gone; on_duty; place: 0 and 1
--   for the two oldest elected workers, 2 for the youngest, NULL for others.
-- Locks: this worker's own rows.
-- Index: primary keys, horsies_heartbeats_worker, horsies_heartbeats_parents.
CREATE OR REPLACE FUNCTION horsies_beat(
  p_worker uuid, p_ids uuid[], p_pids int[], p_holding text[], p_running_sync int,
  p_running_async int, p_memory_usage_mb float8, p_children_memory_mb float8, p_fresh interval,
  p_listens boolean, OUT alive boolean, OUT on_duty boolean, OUT place int
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_team bigint;
  v_commit text := set_config('synchronous_commit', 'off', true);
BEGIN
  UPDATE horsies_heartbeats b
  SET sent_at = v_now, listens = p_listens
  WHERE b.id = p_worker AND b.died_at IS NULL
  RETURNING b.team
  INTO v_team;

  alive := FOUND;
  on_duty := false;
  IF NOT alive THEN
    RETURN;
  END IF;

  IF p_ids IS NOT NULL THEN
    UPDATE horsies_workers w
    SET
      seen_at = v_now,
      running_sync = p_running_sync,
      running_async = p_running_async,
      memory_usage_mb = p_memory_usage_mb,
      children_memory_mb = p_children_memory_mb
    WHERE w.id = p_worker;

    DELETE FROM horsies_heartbeats b
    WHERE b.worker_id = p_worker AND b.role = 'runner' AND b.id <> ALL (p_ids);

    INSERT INTO horsies_heartbeats AS b (id, worker_id, role, pid, sent_at, holding)
    SELECT c.id, p_worker, 'runner', c.pid, v_now, c.holding::jsonb
    FROM unnest(p_ids, p_pids, p_holding) AS c (id, pid, holding)
    ON CONFLICT (id) DO UPDATE
    SET sent_at = excluded.sent_at, holding = excluded.holding;
  END IF;

  on_duty := p_worker IN (
    SELECT b.id
    FROM horsies_heartbeats b
    WHERE b.role = 'claimer'
      AND b.died_at IS NULL
      AND b.sent_at > v_now - p_fresh
      AND b.sent_at < v_now + p_fresh
    ORDER BY b.died_at, b.id
    LIMIT 3
  );

  IF p_listens THEN
    place := (
      SELECT count(*)
      FROM (
        SELECT
        FROM horsies_heartbeats b
        WHERE b.role = 'claimer'
          AND b.died_at IS NULL
          AND b.id < p_worker
          AND b.team = v_team
          AND b.listens
          AND b.sent_at > v_now - p_fresh
          AND b.sent_at < v_now + p_fresh
        LIMIT 2
      ) AS older
    );

    IF place = 2 AND EXISTS (
      SELECT
      FROM horsies_heartbeats b
      WHERE b.role = 'claimer'
        AND b.died_at IS NULL
        AND b.id > p_worker
        AND b.team = v_team
        AND b.listens
        AND b.sent_at > v_now - p_fresh
        AND b.sent_at < v_now + p_fresh
    ) THEN
      place := NULL;
    END IF;
  END IF;
END
$$;
