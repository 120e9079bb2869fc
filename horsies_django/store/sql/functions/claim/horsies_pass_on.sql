-- Wakes other workers of the team for tasks that this worker has no free slot for: workers with a
-- free slot in the lane, as many as tasks wait, at most 20. The choice is left to chance: a worker
-- that is stopped seems to have free slots, too.
-- Returns: how many; NULL if nothing waits, or if no other worker of the team listens.
-- Locks: none (the commit takes PostgreSQL's own NOTIFY lock).
-- Index: horsies_heartbeats_parents, horsies_tasks_claim, horsies_tasks_holding, which has an entry
-- per task in flight.
CREATE OR REPLACE FUNCTION horsies_pass_on(
  p_worker uuid, p_channel text, p_lane text, p_queues text[]
) RETURNS int LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_team uuid[] := ARRAY(
    SELECT other.id
    FROM horsies_heartbeats own
    JOIN horsies_heartbeats other ON other.team = own.team
    WHERE own.id = p_worker
      AND other.id <> p_worker
      AND other.role = 'claimer'
      AND other.died_at IS NULL
      AND other.listens);
  v_waiting int := CASE WHEN v_team <> '{}'
    THEN horsies_count_due(p_queues, ARRAY[p_lane], 20, NULL, NULL)
    ELSE 0
  END;
BEGIN
  IF v_waiting = 0 THEN
    RETURN NULL;
  END IF;

  RETURN (
    SELECT count(pg_notify(
      p_channel || '_' || free.id,
      'now ' || p_lane || ' ' || CASE cardinality(p_queues) WHEN 1 THEN p_queues[1] ELSE '*' END))
    FROM (
      SELECT w.id
      FROM horsies_workers w
      LEFT JOIN (
        SELECT t.claimed_by, count(*) AS tasks
        FROM horsies_tasks t
        WHERE t.claimed_by IS NOT NULL AND t.finished_at IS NULL AND t.lane = p_lane
        GROUP BY t.claimed_by
      ) AS busy ON busy.claimed_by = w.id
      WHERE w.id = ANY (v_team)
        AND coalesce(busy.tasks, 0) < greatest(w.processes, 1)
          * CASE p_lane WHEN 'sync' THEN w.threads ELSE w.async_concurrency END
      ORDER BY random()
      LIMIT v_waiting
    ) AS free
  );
END
$$;
