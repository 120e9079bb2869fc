-- Folds waiting tasks into equal ones that the pass is about to start, p_many at most: each is
-- answered by the run that begins after it was committed. Nodes of workflows run on their own, as do
-- tasks that are not due, or late.
-- A task of which too many equal ones wait does not start (its verdict becomes ''; more): they are
-- folded into it, or, if it has begun before, into one that never did, and the next pass goes on.
-- A task that never began gives back what was folded into it if it ends without a start; see
-- horsies_unfold.
-- Moves PENDING -> CANCELLED, with the code MERGED.
-- Locks: their rows, skipping locked ones.
-- Index: horsies_tasks_order.
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
      SELECT t.workflow_id, t.claim_generation INTO v_task FROM horsies_tasks t WHERE t.id = v_one.id;
      IF v_task.workflow_id IS NULL THEN
        v_ids := ARRAY(
          SELECT t.id FROM horsies_tasks t
          WHERE t.queue_name = p_limits[v_one.queue].queue_name AND t.partition_key = v_one.key
            AND t.ordered AND (t.finished_at IS NULL OR t.order_stop IS NOT NULL)
            AND t.finished_at IS NULL AND t.claimed_by IS NULL AND t.enqueued_at <= p_now
            AND t.workflow_id IS NULL AND coalesce(t.good_until > p_now, true) AND t.id <> v_one.id
          ORDER BY least(t.claim_generation, 1) DESC, t.sent_at, t.id
          LIMIT p_many - many
          FOR NO KEY UPDATE SKIP LOCKED);
        v_into := v_one.id;
        IF many + cardinality(v_ids) >= p_many THEN
          more := true;
          v_one.verdict := '';
          IF v_task.claim_generation > 0 THEN
            v_into := v_ids[cardinality(v_ids)];  -- the last in the order: those that began are first
            v_ids := array_remove(v_ids, v_into);
          END IF;
        END IF;
        IF v_ids <> '{}' THEN
          UPDATE horsies_tasks t
          SET status = 'CANCELLED', finished_at = p_now, error_code = 'MERGED', merged_into = v_into,
              parked = false, result = horsies_error_result('MERGED', format(
                'the equal task %s began after it was sent, and ran for it', v_into))
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
