-- Deletes finished tasks of some queues that are older than p_age, with their attempts and steps:
-- one batch of at most p_many tasks. Tasks of workflow runs are deleted with the runs; a task that
-- stops its partition stays, and so does one into which others were merged, until these are gone.
-- There is one caller at a time; others do nothing.
--
-- It reads the index of finished tasks by time. horsies_prunings stores under p_key how far it
-- came, so rows that are kept longer are read once, not in every round. A batch reads a window of
-- p_many entries, and all tasks that finished at the same time as the last one. A full batch may
-- leave some of that time, where the next one begins then; none reads the entries that the batches
-- before it deleted, which stay in the index until it is vacuumed. If rows of the window are
-- locked, or rows of the project refer to them, the next round starts there again.
--
-- Once a week a round starts at the beginning, for rows that appeared before that point (a long
-- transaction, a restored table, a clock set back).
--
-- Args: p_queues: the queues; if p_others, all except these.
--   p_keep: instead, completed tasks of all queues with this keep_result in their options; or, if
--     it is an array of two numbers, those whose keep_result is longer than the first, up to the
--     second. Without p_keep, completed tasks whose keep_result is longer than p_age stay.
-- Returns: how many tasks and attempts were deleted, and whether there may be more.
-- Locks: an advisory lock, without waiting; task rows, skipping locked ones.
-- Index: horsies_tasks_finished, primary keys, horsies_tasks_merged.
CREATE OR REPLACE FUNCTION horsies_prune(
  p_key text, p_queues text[], p_others boolean, p_age interval, p_keep jsonb, p_many int,
  OUT tasks int, OUT attempts int, OUT more boolean
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_state horsies_prunings;
  v_after timestamptz;
  v_until timestamptz;
  v_ids uuid[];
  v_kept uuid[] := '{}';  -- referred to by rows of the project
  v_left timestamptz;
  v_own jsonb := CASE WHEN p_keep IS NOT NULL THEN jsonb_build_object('keep_result', p_keep) END;
BEGIN
  tasks := 0;
  attempts := 0;
  more := false;

  IF NOT pg_try_advisory_xact_lock(
    hashtextextended('prune', 'horsies_tasks'::regclass::oid::bigint)
  ) THEN
    RETURN;
  END IF;

  SELECT p.* INTO v_state FROM horsies_prunings p WHERE p.key = p_key;
  IF NOT FOUND THEN
    -- of settings that are no longer in use; the rows of retentions of tasks stay
    DELETE FROM horsies_prunings p
    WHERE p.pruned_at < v_now - interval '30 days'
      AND NOT starts_with(p.key, 'keep: ')
      AND NOT starts_with(p.key, 'own: ');

    INSERT INTO horsies_prunings AS p (key, began_at, pruned_at)
    VALUES (p_key, v_now, v_now)
    RETURNING p.*
    INTO v_state;
  ELSIF v_state.began_at < v_now - interval '7 days' THEN
    v_state.began_at := v_now;
    v_state.reached_at := NULL;
  END IF;

  v_after := CASE WHEN v_state.reached_at < v_now THEN v_state.reached_at ELSE '-infinity' END;
  SELECT max(w.finished_at)
  INTO v_until
  FROM (
    SELECT t.finished_at
    FROM horsies_tasks t
    WHERE t.finished_at > v_after AND t.finished_at < v_now - p_age
    ORDER BY t.finished_at
    LIMIT p_many
  ) AS w;

  IF v_until IS NULL THEN
    UPDATE horsies_prunings p
    SET
      reached_at = least(v_state.reached_at, v_state.left_at - interval '1 microsecond'),
      left_at = NULL,
      began_at = v_state.began_at,
      pruned_at = v_now,
      done_at = v_now
    WHERE p.key = p_key;

    RETURN;
  END IF;

  IF horsies_may_be_referenced('horsies_tasks') THEN
    v_kept := horsies_referenced('horsies_tasks', ARRAY(
      SELECT t.id
      FROM horsies_tasks t
      WHERE t.finished_at > v_after
        AND t.finished_at <= v_until
        AND t.workflow_id IS NULL
        AND t.order_stop IS NULL
        AND horsies_prunable(
          t.queue_name, t.status, t.options, p_queues, p_others, p_age, v_own
        )
    ));
  END IF;

  v_ids := ARRAY(
    SELECT t.id
    FROM horsies_tasks t
    WHERE t.finished_at > v_after
      AND t.finished_at <= v_until
      AND t.workflow_id IS NULL
      AND t.order_stop IS NULL
      AND horsies_prunable(t.queue_name, t.status, t.options, p_queues, p_others, p_age, v_own)
      AND t.id <> ALL (v_kept)
      AND (SELECT m.id FROM horsies_tasks m WHERE m.merged_into = t.id LIMIT 1) IS NULL
    ORDER BY t.finished_at
    LIMIT p_many
    FOR UPDATE SKIP LOCKED
  );

  tasks := cardinality(v_ids);
  attempts := horsies_delete_tasks(v_ids);
  more := true;
  IF tasks = p_many THEN
    v_until := v_until - interval '1 microsecond';
  END IF;

  SELECT min(t.finished_at)
  INTO v_left
  FROM horsies_tasks t
  WHERE t.finished_at > v_after
    AND t.finished_at <= v_until
    AND t.workflow_id IS NULL
    AND t.order_stop IS NULL
    AND horsies_prunable(t.queue_name, t.status, t.options, p_queues, p_others, p_age, v_own)
    AND (SELECT m.id FROM horsies_tasks m WHERE m.merged_into = t.id LIMIT 1) IS NULL;

  UPDATE horsies_prunings p
  SET
    reached_at = v_until,
    left_at = least(v_state.left_at, v_left),
    began_at = v_state.began_at,
    pruned_at = v_now
  WHERE p.key = p_key;
END
$$;
