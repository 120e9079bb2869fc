-- Folds waiting tasks into equal tasks that the pass is about to start, p_many at most. The task
-- that starts begins after the waiting tasks were committed, so it answers them, too. Nodes of
-- workflows, tasks that are not due and late tasks are not folded.
-- If too many equal tasks wait, the task does not start: its verdict becomes ''. They are folded
-- into it or, if it has begun before, into one that never did, and the next pass goes on. If a task
-- that never began ends without a start, the tasks that were folded into it are reopened; see
-- horsies_unfold.
-- Returns:
--   p_candidates: the candidates, with their verdicts.
--   many: how many tasks were folded.
--   more: whether the next pass has to go on.
-- Moves: PENDING -> CANCELLED, with the code MERGED.
-- Locks: the rows of the folded tasks, skipping locked ones.
-- Index: horsies_tasks_order, whose condition the query repeats.
CREATE OR REPLACE FUNCTION horsies_fold(
  p_limits horsies_limits[], p_now timestamptz, p_many int, p_channel text,
  INOUT p_candidates horsies_candidate[], OUT many int, OUT more boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_one horsies_candidate;
  v_task record;
  v_into uuid;
  v_ids uuid[];
  v_decided horsies_candidate[] := '{}';
BEGIN
  many := 0;
  more := false;
  FOREACH v_one IN ARRAY p_candidates LOOP
    IF p_limits[v_one.queue].partition_policy = 'coalesce' AND v_one.verdict = 'start' THEN
      SELECT t.workflow_id, t.claim_generation
      INTO v_task
      FROM horsies_tasks t
      WHERE t.id = v_one.id;

      IF v_task.workflow_id IS NULL THEN
        v_ids := ARRAY(
          SELECT t.id
          FROM horsies_tasks t
          WHERE t.queue_name = p_limits[v_one.queue].queue_name
            AND t.partition_key = v_one.key
            AND t.ordered
            AND (t.finished_at IS NULL OR t.order_stop IS NOT NULL)
            AND t.finished_at IS NULL
            AND t.claimed_by IS NULL
            AND t.enqueued_at <= p_now
            AND t.workflow_id IS NULL
            AND coalesce(t.good_until > p_now, true)
            AND t.id <> v_one.id
          ORDER BY least(t.claim_generation, 1) DESC, t.sent_at, t.id
          LIMIT p_many - many
          FOR NO KEY UPDATE SKIP LOCKED
        );

        v_into := v_one.id;
        IF many + cardinality(v_ids) >= p_many THEN
          more := true;
          v_one.verdict := '';
          IF v_task.claim_generation > 0 THEN
            -- the last in the order: tasks that have begun are first
            v_into := v_ids[cardinality(v_ids)];
            v_ids := array_remove(v_ids, v_into);
          END IF;
        END IF;

        IF v_ids <> '{}' THEN
          UPDATE horsies_tasks t
          SET
            status = 'CANCELLED',
            finished_at = p_now,
            error_code = 'MERGED',
            merged_into = v_into,
            parked = false,
            result = horsies_error_result(
              'MERGED',
              format('the equal task %s began after it was sent, and ran for it', v_into)
            )
          WHERE t.id = ANY (v_ids) AND t.status = 'PENDING';

          PERFORM horsies_notify_finished(p_channel, v_ids);
          many := many + cardinality(v_ids);
        END IF;
      END IF;
    END IF;
    v_decided := v_decided || v_one;
  END LOOP;
  p_candidates := v_decided;
END
$$;
