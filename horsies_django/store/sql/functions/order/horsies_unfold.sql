-- Reopens one of the tasks that were folded into each of some tasks whose code did not begin after
-- all, and folds the others into this one.
-- Returns: how many tasks it has reopened.
-- Moves: CANCELLED -> PENDING.
-- Locks: the rows of folded tasks, skipping locked ones.
-- Index: horsies_tasks_merged.
CREATE OR REPLACE FUNCTION horsies_unfold(p_ids uuid[], p_now timestamptz) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_one record;
  v_count int := 0;
BEGIN
  FOR v_one IN
    SELECT s.id AS survivor, f.id
    FROM unnest(p_ids) AS s (id)
    CROSS JOIN LATERAL (
      SELECT t.id
      FROM horsies_tasks t
      WHERE t.merged_into = s.id AND t.redacted_at IS NULL
      LIMIT 1
      FOR NO KEY UPDATE SKIP LOCKED
    ) AS f
  LOOP
    UPDATE horsies_tasks t
    SET
      status = 'PENDING',
      enqueued_at = least(t.enqueued_at, p_now),
      finished_at = NULL,
      error_code = NULL,
      result = NULL,
      merged_into = NULL
    WHERE t.id = v_one.id AND t.status = 'CANCELLED';

    UPDATE horsies_tasks t
    SET merged_into = v_one.id
    WHERE t.id = ANY (
      ARRAY(
        SELECT o.id
        FROM horsies_tasks o
        WHERE o.merged_into = v_one.survivor
        FOR NO KEY UPDATE SKIP LOCKED
      )
    );

    v_count := v_count + 1;
  END LOOP;
  RETURN v_count;
END
$$;
