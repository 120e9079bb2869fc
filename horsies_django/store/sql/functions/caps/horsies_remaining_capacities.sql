-- Returns the rooms of several queues for one worker, in their order; see horsies_remaining_capacity. p_batch bounds each.
-- held: for each queue in p_cursors that has a cap, when its tasks in flight were claimed; it becomes "held" in the next p_cursors.
-- Locks: none; exact only under the queues' advisory locks. Index: horsies_tasks_holding.
CREATE FUNCTION horsies_remaining_capacities(p_limits horsies_limits[], p_worker uuid, p_claimed boolean, p_batch int, p_now timestamptz, p_cursors jsonb,
                              OUT rooms int[], OUT held jsonb)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_cursors jsonb;
  v_moments timestamptz[];
  v_room record;
BEGIN
  rooms := '{}';
  held := '{}';
  FOR i IN 1 .. cardinality(p_limits) LOOP
    v_cursors := p_cursors -> p_limits[i].queue_name;
    v_moments := CASE WHEN v_cursors IS NOT NULL THEN '{}'::timestamptz[] END;
    IF v_cursors ? 'held' THEN
      v_moments := ARRAY(SELECT m::timestamptz FROM jsonb_array_elements_text(v_cursors -> 'held') AS m);
    END IF;
    v_room := horsies_remaining_capacity(p_limits[i], p_worker, p_claimed, p_now, v_moments);
    rooms[i] := least(v_room.room, p_batch);
    IF v_room.moments IS NOT NULL THEN
      held := held || jsonb_build_object(p_limits[i].queue_name, v_room.moments);
    END IF;
  END LOOP;
END
$$;
