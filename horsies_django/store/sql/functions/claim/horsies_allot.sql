-- Decides which candidates get a permit, in their order. A candidate takes a free slot of its lane,
-- or else, if it is sync, one of p_wanted.prefetch. After a refused candidate whose scan was cut,
-- the candidates after the last one of that scan wait for the next round, to keep the order.
-- Args:
--   p_wanted, p_rooms: free slots, and how many more of each queue may start (NULL: no limit); both
--     are reduced by what is given.
--   p_cuts: see horsies_candidates.
-- Returns:
--   p_candidates: with a verdict each: 'start', 'prefetch', 'late', 'park' (its partition is full
--     for every worker, or another task of it comes first), 'here' (its partition is full for this
--     worker only, or the task that comes first is locked), or '' (no room in the queue, the lane
--     or p_wanted.total).
--   refused: whether there are any of 'late', 'park', 'here'.
--   stopped: whether a candidate of a cut scan was refused.
-- Locks: the first tasks of partitions, see horsies_lock_head. The result is exact only under the
-- queues' advisory locks.
-- Index: horsies_tasks_holding and horsies_tasks_order, for queues with limits per partition.
CREATE OR REPLACE FUNCTION horsies_allot(
  p_limits horsies_limits[], p_cuts text[], INOUT p_wanted horsies_wanted, INOUT p_rooms int[],
  INOUT p_candidates horsies_candidate[], OUT refused boolean, OUT stopped boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_stop int := cardinality(p_candidates);
  v_parts text[];
  v_part_rooms int[];
  v_everyone int[];  -- the room of a partition on all workers; prefetched tasks do not use it
  v_heads uuid[];  -- the task of a partition that alone may start, see horsies_order_head
  v_one horsies_candidate;
  v_decided horsies_candidate[] := '{}';
  v_part int;
  v_slot boolean;
BEGIN
  refused := false;
  stopped := false;

  FOREACH v_one IN ARRAY p_candidates LOOP
    IF v_one.key IS NOT NULL AND v_parts IS NULL THEN
      SELECT
        coalesce(array_agg(keyed_queue.queue || partition_room.key), '{}'),
        array_agg(partition_room.room),
        array_agg(partition_room.everyone),
        array_agg(head.id)
      INTO v_parts, v_part_rooms, v_everyone, v_heads
      FROM (
        SELECT candidate.queue, array_agg(DISTINCT candidate.key) AS keys
        FROM unnest(p_candidates) AS candidate
        WHERE candidate.key IS NOT NULL
          AND (p_limits[candidate.queue].partition_max_concurrency IS NOT NULL
               OR p_limits[candidate.queue].partition_local_limit IS NOT NULL)
        GROUP BY candidate.queue
      ) AS keyed_queue
      CROSS JOIN LATERAL horsies_partition_rooms(
        p_limits[keyed_queue.queue], keyed_queue.keys, p_wanted.worker, p_wanted.lease IS NULL,
        p_wanted.now
      ) AS partition_room
      LEFT JOIN LATERAL horsies_order_head(
        p_limits[keyed_queue.queue], partition_room.key
      ) AS head ON true;
    END IF;

    v_part := array_position(v_parts, v_one.queue || v_one.key);
    v_slot := CASE v_one.lane WHEN 'sync' THEN p_wanted.sync ELSE p_wanted.async END > 0;
    v_one.verdict := CASE
      WHEN cardinality(v_decided) >= v_stop
        OR p_wanted.total <= 0
        OR p_rooms[v_one.queue] <= 0
        OR NOT (
          v_slot
          OR (v_one.lane = 'sync' AND p_wanted.prefetch > 0
              AND p_limits[v_one.queue].partition_policy IS NULL)
        )
        THEN ''
      WHEN v_one.late THEN 'late'
      WHEN v_everyone[v_part] <= 0 THEN 'park'
      WHEN v_heads[v_part] <> v_one.id
        THEN CASE WHEN horsies_lock_head(v_heads[v_part]) THEN 'park' ELSE 'here' END
      WHEN v_part_rooms[v_part] <= 0 THEN 'here'
      WHEN v_slot THEN 'start'
      ELSE 'prefetch'
    END;
    v_decided := v_decided || v_one;

    IF v_one.verdict IN ('start', 'prefetch') THEN
      p_wanted.total := p_wanted.total - 1;
      p_rooms[v_one.queue] := p_rooms[v_one.queue] - 1;
      IF v_part IS NOT NULL THEN
        v_part_rooms[v_part] := v_part_rooms[v_part] - 1;
        v_everyone[v_part] := v_everyone[v_part] - v_slot::int;
      END IF;
      IF NOT v_slot THEN
        p_wanted.prefetch := p_wanted.prefetch - 1;
      ELSIF v_one.lane = 'sync' THEN
        p_wanted.sync := p_wanted.sync - 1;
      ELSE
        p_wanted.async := p_wanted.async - 1;
      END IF;
    ELSIF v_one.verdict <> '' THEN
      refused := true;
      IF (v_one.queue || v_one.lane) = ANY (p_cuts) THEN
        stopped := true;
        p_cuts := array_remove(p_cuts, v_one.queue || v_one.lane);
        v_stop := least(v_stop, (
          SELECT max(c.ordinality)::int
          FROM unnest(p_candidates) WITH ORDINALITY AS c
          WHERE c.queue = v_one.queue AND c.lane = v_one.lane
        ));
      END IF;
    END IF;
  END LOOP;
  p_candidates := v_decided;
END
$$;
