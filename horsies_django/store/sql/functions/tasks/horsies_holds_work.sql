-- Returns whether a task keeps the same work from being sent. A task that has not finished does so
-- until its 'end'; until its 'start', only one that was never claimed does.
--
-- A task that has not started before its good_until holds nothing. It is expired here, so that no
-- pass that began before can start it; if the caller may only insert tasks, a worker expires it.
--
-- Args: p_until: 'start' or 'end'.
--   p_now: the clock of the caller.
-- Moves: PENDING, CLAIMED -> EXPIRED.
-- Locks: the row of a task that is late. It waits for the holder in a statement of its own, so that
--   the next one reads what the holder did.
CREATE OR REPLACE FUNCTION horsies_holds_work(p_id uuid, p_until text, p_now timestamptz)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_late boolean;
  v_task record;
BEGIN
  LOOP
    SELECT t.status IN ('PENDING', 'CLAIMED') AND coalesce(t.good_until <= p_now, false)
    INTO v_late
    FROM horsies_tasks t
    WHERE t.id = p_id
      AND t.finished_at IS NULL
      AND (p_until = 'end' OR t.claim_generation = 0);

    IF NOT FOUND THEN
      RETURN false;
    ELSIF NOT v_late THEN
      RETURN true;
    ELSIF NOT has_table_privilege('horsies_tasks'::regclass, 'UPDATE') THEN
      RETURN false;
    END IF;

    SELECT t.queue_name::text, t.partition_key
    INTO v_task
    FROM horsies_tasks t
    WHERE t.id = p_id AND t.status IN ('PENDING', 'CLAIMED') AND t.good_until <= p_now
    FOR NO KEY UPDATE;

    IF FOUND THEN
      PERFORM horsies_expire(ARRAY[p_id], p_now, horsies_channel());

      IF v_task.partition_key IS NOT NULL THEN
        PERFORM horsies_unpark_next(
          ARRAY[v_task.queue_name], ARRAY[v_task.partition_key], horsies_channel()
        );
      END IF;

      RETURN false;
    END IF;
  END LOOP;
END
$$;
