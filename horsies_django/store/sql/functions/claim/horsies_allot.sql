-- Decides which candidates get a permit, in their order. This is arithmetic on arrays; no table is read.
-- Per candidate: p_queues (index of its queue in p_rooms), p_lanes, p_parts (index of its partition in p_part_rooms, 0 for none; NULL
-- without partitions), p_late (past its good_until). Rooms are how many more may start, NULL for no limit. A candidate takes a free slot of
-- its lane, or else, if it is sync, one of p_prefetch. p_part_all is a partition's room on all workers; prefetched tasks do not use it.
-- verdicts: 'start', 'prefetch', 'late', 'park' (the partition is full for every worker), 'here' (full for this worker only), or '' (no
-- room in queue, lane or p_total). p_cuts: the index of the last candidate of its scan if there may be more after it, else NULL. After a
-- candidate that is late or refused by its partition, those after that index wait for the next round (stopped), to keep the order.
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
    CONTINUE WHEN p_rooms[v_queue] <= 0 OR NOT (v_slot OR (p_lanes[i] = 'sync' AND p_prefetch > 0));
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
