-- Deletes the tasks among p_ids that have finished, stop no partition and belong to no workflow
-- run, with their attempts and steps. A task to which rows of the project refer stays; see
-- horsies_referenced.
--
-- Returns: how many tasks it has deleted.
-- Locks: the task rows, skipping locked ones.
CREATE OR REPLACE FUNCTION horsies_delete_finished(p_ids uuid[]) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_ids uuid[];
  v_kept uuid[];
BEGIN
  v_ids := ARRAY(
    SELECT t.id
    FROM horsies_tasks t
    WHERE t.id = ANY (p_ids)
      AND t.workflow_id IS NULL
      AND t.order_stop IS NULL
      -- "finished_at IS NOT NULL" may read all finished tasks there are
      AND t.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
    FOR UPDATE SKIP LOCKED
  );

  v_kept := horsies_referenced('horsies_tasks', v_ids);
  IF v_kept <> '{}' THEN
    v_ids := ARRAY(SELECT id FROM unnest(v_ids) AS one (id) WHERE id <> ALL (v_kept));
  END IF;

  PERFORM horsies_delete_tasks(v_ids);
  RETURN cardinality(v_ids);
END
$$;
