-- Returns those of some queues in which a pass has to look for tasks: a few queues as they are; of many only those with claimable tasks,
-- due or not.
-- It leaps through the index from one queue to the next, so a queue without tasks costs nothing. If it meets more queues than it was asked
-- for, the others are those of other workers, and it probes each of its own instead.
-- Locks: none. Index: horsies_tasks_claim, in its order, no sort.
CREATE FUNCTION horsies_waiting_queues(p_queues text[]) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  c_few CONSTANT int := 8;
  v_queue text := '';
  v_found text[] := '{}';
BEGIN
  IF cardinality(p_queues) <= c_few THEN
    RETURN p_queues;
  END IF;
  FOR i IN 0 .. cardinality(p_queues) LOOP
    SELECT t.queue_name INTO v_queue FROM horsies_tasks t
    WHERE t.queue_name > v_queue AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
    ORDER BY t.queue_name LIMIT 1;
    IF NOT FOUND THEN
      RETURN v_found;
    ELSIF v_queue = ANY (p_queues) THEN
      v_found := v_found || v_queue;
    END IF;
  END LOOP;
  RETURN ARRAY(
    SELECT q.name FROM unnest(p_queues) AS q (name)
    WHERE EXISTS (SELECT FROM horsies_tasks t
                  WHERE t.queue_name = q.name AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked));
END
$$;
