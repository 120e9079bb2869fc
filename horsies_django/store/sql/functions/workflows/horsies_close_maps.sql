-- Moves on maps whose tasks were all sent, or have all finished.
-- Moves READY -> ENQUEUED, COMPLETED, FAILED; ENQUEUED -> COMPLETED, FAILED. Returns those that are final.
-- Locks: the caller holds the lock of the run. Index: primary key.
CREATE FUNCTION horsies_close_maps(p_workflow uuid, p_numbers bigint[], p_now timestamptz) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_moved bigint[];
BEGIN
  WITH closed AS (
    UPDATE horsies_workflow_nodes n
    SET status = CASE WHEN n.in_flight > 0 THEN 'ENQUEUED' WHEN n.items_bad = 0 THEN 'COMPLETED' ELSE 'FAILED' END,
        finished_at = CASE WHEN n.in_flight = 0 THEN p_now END,
        error_code = CASE WHEN n.in_flight = 0 AND n.items_bad > 0 THEN 'MAP_FAILED' END,
        error = CASE WHEN n.in_flight = 0 AND n.items_bad > 0
                  THEN concat(n.items_bad, ' of ', n.total, ' tasks did not complete', '; one of them: ' || n.error) ELSE n.error END
    WHERE n.workflow_id = p_workflow AND n.number = ANY (p_numbers) AND n.kind = 'map' AND n.finished_at IS NULL
      AND n.expanded >= n.total AND (n.status = 'READY' OR n.in_flight = 0)
    RETURNING n.number, n.finished_at
  )
  SELECT array_agg(c.number) FILTER (WHERE c.finished_at IS NOT NULL) INTO v_moved FROM closed c;
  RETURN coalesce(v_moved, '{}');
END
$$;
