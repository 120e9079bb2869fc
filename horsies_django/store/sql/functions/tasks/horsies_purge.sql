-- Cancels those of some tasks that still wait and belong to no workflow run; tasks that a worker has claimed meanwhile are left to it.
-- Moves PENDING -> CANCELLED. Returns how many.
-- Locks: the task rows, skipping locked ones. Index: primary key.
CREATE OR REPLACE FUNCTION horsies_purge(p_ids uuid[], p_channel text) RETURNS int LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_ids uuid[];
BEGIN
  v_ids := ARRAY(
    SELECT t.id FROM horsies_tasks t
    WHERE t.id = ANY (p_ids) AND t.status = 'PENDING' AND t.workflow_id IS NULL
    FOR NO KEY UPDATE SKIP LOCKED);
  PERFORM horsies_cancel(v_ids, false, p_channel);
  RETURN cardinality(v_ids);
END
$$;
