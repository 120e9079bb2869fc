-- Returns the partitions of a queue that have no room, on any worker or on this one.
-- Locks: none. Index: horsies_tasks_holding.
CREATE FUNCTION horsies_full_partitions(p_limits horsies_limits, p_worker uuid, p_claimed boolean, p_now timestamptz) RETURNS text[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_keys text[];
BEGIN
  IF p_limits.partition_max_concurrency IS NULL AND p_limits.partition_local_limit IS NULL THEN
    RETURN '{}';
  END IF;
  v_keys := horsies_partitions_in_use(p_limits);
  RETURN ARRAY(
    SELECT k.key
    FROM horsies_partition_capacity(ARRAY[p_limits], array_fill(1, ARRAY[cardinality(v_keys)]), v_keys, p_worker, p_claimed, p_now) AS a
    CROSS JOIN LATERAL unnest(v_keys, a.parts) AS k (key, part)
    WHERE least(a.rooms[k.part], a.everyone[k.part]) <= 0);
END
$$;
