-- Lets ready waits of a run begin, p_many at most. Those for signals take what was sent early, the oldest first.
-- Moves READY -> WAITING, COMPLETED. moved: the nodes that are final now. more: there may be other ready waits.
-- Locks: as horsies_give_signal; the caller holds the lock of the run. Index: horsies_workflow_nodes_waits, primary keys.
CREATE OR REPLACE FUNCTION horsies_begin_waits(p_workflow uuid, p_many int, p_now timestamptz, OUT moved bigint[], OUT more boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_signals bigint[];
BEGIN
  WITH ready AS MATERIALIZED (  -- see horsies_propagate
    SELECT n.workflow_id, n.number FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_workflow AND n.status = 'READY' AND n.is_wait AND n.finished_at IS NULL LIMIT p_many
  ), begun AS (
    UPDATE horsies_workflow_nodes n
    SET status = 'WAITING', due_at = coalesce(n.due_at, p_now + n.delay), opening = n.opening + 1, decided_by = NULL
    FROM ready r WHERE n.workflow_id = r.workflow_id AND n.number = r.number
    RETURNING n.number, n.signal IS NOT NULL AND n.kind <> 'gate' AS takes_signals
  )
  SELECT count(*) = p_many, array_agg(b.number ORDER BY b.number) FILTER (WHERE b.takes_signals) INTO more, v_signals FROM begun b;
  moved := ARRAY(SELECT s.number FROM unnest(v_signals) AS s (number) WHERE horsies_give_signal(p_workflow, s.number, NULL, p_now));
END
$$;
