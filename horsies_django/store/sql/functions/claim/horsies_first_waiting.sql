-- The first claimable task of a queue and lane beyond a priority, in order (priority, enqueued_at), whenever it becomes due.
-- p_ranges: where one can be, as [{"low", "high", "since"}, ...] in the order of priorities: of the priorities from low to high, nothing
-- claimable is left that became due before since (an epoch; NULL: anything may be). p_behind: but from that moment on look again; something
-- came back there.
-- While an old transaction keeps vacuum away, every claim leaves an index entry behind that a scan has to walk over, and its row to visit:
-- a range that starts where the last scan found something begins behind them. A range of one priority starts at its moment exactly.
-- The ranges are looked at one by one, in their order, as an unsorted nested loop does.
-- Locks: none. Index: horsies_tasks_claim, in its order, no sort.
CREATE FUNCTION horsies_first_waiting(p_queue text, p_lane text, p_beyond smallint, p_ranges jsonb, p_behind timestamptz,
                              OUT priority smallint, OUT moment timestamptz) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  SELECT f.priority, f.enqueued_at INTO priority, moment
  FROM jsonb_to_recordset(p_ranges) AS r (low smallint, high smallint, since float8)
  CROSS JOIN LATERAL (
    SELECT t.priority, t.enqueued_at FROM horsies_tasks t
    WHERE t.queue_name = p_queue AND t.lane = p_lane AND t.priority > p_beyond AND t.priority >= r.low AND t.priority <= r.high
      AND t.enqueued_at >= least(coalesce(to_timestamp(r.since), '-infinity'), p_behind)
      AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
    ORDER BY t.priority, t.enqueued_at LIMIT 1
  ) AS f LIMIT 1;
END
$$;
