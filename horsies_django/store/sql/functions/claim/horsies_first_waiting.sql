-- Returns the first claimable task of a queue and lane after priority p_beyond, in order (priority,
-- enqueued_at), whether it is due or not. A range of p_cursors that starts where the last scan
-- found a task skips the dead index entries before it; see docs/explanation/the-pass.md. The ranges
-- are read one by one in their order, because a nested loop does not sort.
-- Args:
--   p_cursors: by queue and lane the ranges to read, as [{"low", "high", "since"}, ...] in order of
--     priority: from priority low to high, no claimable task is left that became due before since
--     (an epoch; NULL: any may be left). Tasks whose run forbids their start are left out then;
--     they are announced when it allows it. Without an entry for queue and lane everything is read.
--   p_behind: tasks from this time on are read in any case, because one came back there.
-- Index: horsies_tasks_claim, in its order, no sort; for a range of one priority it starts exactly
-- at since.
CREATE OR REPLACE FUNCTION horsies_first_waiting(
  p_queue text, p_lane text, p_beyond smallint, p_cursors jsonb, p_behind timestamptz,
  OUT priority smallint, OUT moment timestamptz
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF p_cursors -> p_queue ? p_lane THEN
    SELECT f.priority, f.enqueued_at
    INTO priority, moment
    FROM jsonb_to_recordset(p_cursors -> p_queue -> p_lane)
      AS r (low smallint, high smallint, since float8)
    CROSS JOIN LATERAL (
      SELECT t.priority, t.enqueued_at
      FROM horsies_tasks t
      WHERE t.queue_name = p_queue
        AND t.lane = p_lane
        AND t.priority > p_beyond
        AND t.priority >= r.low
        AND t.priority <= r.high
        AND t.enqueued_at >= least(coalesce(to_timestamp(r.since), '-infinity'), p_behind)
        AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
        AND (t.workflow_id IS NULL
             OR NOT EXISTS (SELECT FROM horsies_forbidding(t.workflow_id, t.node)))
      ORDER BY t.priority, t.enqueued_at
      LIMIT 1
    ) AS f
    LIMIT 1;
  ELSE
    SELECT t.priority, t.enqueued_at
    INTO priority, moment
    FROM horsies_tasks t
    WHERE t.queue_name = p_queue
      AND t.lane = p_lane
      AND t.priority > p_beyond
      AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
    ORDER BY t.priority, t.enqueued_at
    LIMIT 1;
  END IF;
END
$$;
