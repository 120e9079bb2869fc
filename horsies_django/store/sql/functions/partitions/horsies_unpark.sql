-- Unparks the first tasks of partitions that have room again: in each lane as many as permits became free, because either lane may have a
-- slot. Tasks that their run does not let start would not use the permit. Returns how many.
-- Call it under the queue's advisory lock: tasks that another pass is parking are visible only then.
-- Locks: the rows that it unparks, skipping locked ones. Index: horsies_tasks_parked.
CREATE FUNCTION horsies_unpark(p_queue text, p_keys text[], p_counts int[]) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_count int;
BEGIN
  IF NOT EXISTS (
    SELECT FROM horsies_tasks p
    WHERE p.queue_name = p_queue AND p.claimed_by IS NULL AND p.finished_at IS NULL AND p.parked
  ) THEN
    RETURN 0;
  END IF;
  UPDATE horsies_tasks t SET parked = false
  WHERE t.parked AND t.id = ANY (ARRAY(
    SELECT head.id
    FROM unnest(p_keys, p_counts) AS freed (key, permits)
    CROSS JOIN (VALUES ('sync'), ('async')) AS lanes (lane)
    CROSS JOIN LATERAL (
      SELECT h.id FROM horsies_tasks h
      WHERE h.queue_name = p_queue AND h.partition_key = freed.key AND h.lane = lanes.lane
        AND h.claimed_by IS NULL AND h.finished_at IS NULL AND h.parked
        AND (h.workflow_id IS NULL OR NOT EXISTS (SELECT FROM horsies_forbidding(h.workflow_id, h.node)))
      ORDER BY h.priority, h.enqueued_at, h.id LIMIT freed.permits FOR NO KEY UPDATE SKIP LOCKED
    ) AS head));
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END
$$;
