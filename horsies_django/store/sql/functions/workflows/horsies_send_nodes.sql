-- Sends the tasks of ready nodes of a run; see horsies_send_all.
-- Moves nodes READY -> ENQUEUED; tasks (none) -> PENDING. Returns how many.
-- Locks: none but the new rows; the caller holds the lock of the run. Index: primary keys.
CREATE FUNCTION horsies_send_nodes(p_run horsies_workflows, p_numbers bigint[], p_max_bytes int, p_now timestamptz) RETURNS int
LANGUAGE sql VOLATILE AS $$
  SELECT horsies_send_all(array_fill(p_run.id, ARRAY[cardinality(p_numbers)]), p_numbers, p_max_bytes, p_now)
$$;
