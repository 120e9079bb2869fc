-- The rooms of several queues for one worker, in their order, see horsies_room_v1; p_batch is the most that one pass may claim of each.
-- Locks: none; exact only under the queues' advisory locks. Index: horsies_tasks_holding.
CREATE FUNCTION horsies_rooms_v1(p_limits horsies_limits[], p_worker uuid, p_claimed boolean, p_batch int, p_now timestamptz) RETURNS int[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_rooms int[] := '{}';
BEGIN
  FOR i IN 1 .. cardinality(p_limits) LOOP
    v_rooms[i] := least(horsies_room_v1(p_limits[i], p_worker, p_claimed, p_now), p_batch);
  END LOOP;
  RETURN v_rooms;
END
$$;
