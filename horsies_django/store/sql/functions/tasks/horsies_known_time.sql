-- Returns a time of a task, or the nearest one that Python supports. Passes write times without a
-- check; see horsies_check_task.
CREATE OR REPLACE FUNCTION horsies_known_time(p_time timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
  SELECT CASE
    WHEN p_time IS NOT NULL THEN
      least(greatest(p_time, to_timestamp(-62100000000)), to_timestamp(253400000000))
    END
$$;
