-- Which of the candidates, in their order, may have a permit: the arithmetic of limits and rooms, on arrays. Reads no table.
-- Per candidate: p_queues (its queue's place in p_rooms), p_lanes, p_parts (its partition's place in p_part_rooms, 0 for none; NULL
-- when there are no partitions) and p_late (past its good_until). Rooms: how many more may start, NULL without limit. A slot of the candidate's lane starts it; without one
-- p_prefetch takes it ahead. p_part_all is the partition's room for any worker, beyond this one's own limit: what is only taken ahead
-- leaves it as it is, another worker may start something of the partition first.
-- verdicts: 'start', 'prefetch', 'late', 'park' (its partition is full for every worker), 'here' (full for this worker only),
-- or '' when its queue, its lane or the budget has no room. A candidate that cannot start costs no permit: later ones are looked at.
-- p_cuts: the place of the last candidate of the same scan if there may be more behind it, else NULL. Once one is refused for good
-- or expired, candidates behind that place wait for the next round: the order would not be right.
-- Locks: none. Index: none.
CREATE FUNCTION horsies_allot(p_queues int[], p_lanes text[], p_parts int[], p_late boolean[], p_cuts int[], p_part_all int[],
                              INOUT p_rooms int[], INOUT p_part_rooms int[], INOUT p_total int,
                              INOUT p_sync int, INOUT p_async int, INOUT p_prefetch int,
                              OUT verdicts text[], OUT stopped boolean)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_stop int := cardinality(p_queues);
  v_queue int;
  v_part int;
  v_slot boolean;
BEGIN
  verdicts := array_fill(''::text, ARRAY[cardinality(p_queues)]);
  stopped := false;
  FOR i IN 1 .. cardinality(p_queues) LOOP
    EXIT WHEN i > v_stop OR p_total <= 0;
    v_queue := p_queues[i];
    v_part := coalesce(p_parts[i], 0);
    v_slot := CASE p_lanes[i] WHEN 'sync' THEN p_sync ELSE p_async END > 0;
    CONTINUE WHEN p_rooms[v_queue] <= 0 OR NOT (v_slot OR p_prefetch > 0);
    IF p_late[i] THEN
      verdicts[i] := 'late';
    ELSIF v_part > 0 AND p_part_all[v_part] <= 0 THEN
      verdicts[i] := 'park';
    ELSIF v_part > 0 AND p_part_rooms[v_part] <= 0 THEN
      verdicts[i] := 'here';
    ELSE
      verdicts[i] := CASE WHEN v_slot THEN 'start' ELSE 'prefetch' END;
      p_total := p_total - 1;
      p_rooms[v_queue] := p_rooms[v_queue] - 1;
      IF v_part > 0 THEN
        p_part_rooms[v_part] := p_part_rooms[v_part] - 1;
        p_part_all[v_part] := p_part_all[v_part] - CASE WHEN v_slot THEN 1 ELSE 0 END;
      END IF;
      IF NOT v_slot THEN
        p_prefetch := p_prefetch - 1;
      ELSIF p_lanes[i] = 'sync' THEN
        p_sync := p_sync - 1;
      ELSE
        p_async := p_async - 1;
      END IF;
      CONTINUE;
    END IF;
    IF p_cuts[i] IS NOT NULL THEN
      v_stop := least(v_stop, p_cuts[i]);
      stopped := true;
    END IF;
  END LOOP;
END
$$;
