-- Folds waiting tasks into equal ones that the pass has just started, p_many at most: each is answered by the run that begins now, after it
-- was committed. Nodes of workflows run on their own, as do tasks that are not due, or late.
-- Moves PENDING -> CANCELLED, with the code MERGED. Returns how many.
-- Locks: their rows, skipping locked ones. Index: horsies_tasks_order.
CREATE OR REPLACE FUNCTION horsies_fold(p_limits horsies_limits[], p_started horsies_candidate[], p_now timestamptz, p_many int, p_channel text)
RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_one horsies_candidate;
  v_ids uuid[];
  v_count int := 0;
BEGIN
  FOREACH v_one IN ARRAY p_started LOOP
    CONTINUE WHEN p_limits[v_one.queue].partition_policy IS DISTINCT FROM 'coalesce' OR v_one.verdict <> 'start' OR v_count >= p_many
      OR EXISTS (SELECT FROM horsies_tasks t WHERE t.id = v_one.id AND t.workflow_id IS NOT NULL);
    v_ids := ARRAY(
      SELECT t.id FROM horsies_tasks t
      WHERE t.queue_name = p_limits[v_one.queue].queue_name AND t.partition_key = v_one.key AND t.ordered
        AND (t.finished_at IS NULL OR t.order_stop IS NOT NULL)
        AND t.finished_at IS NULL AND t.claimed_by IS NULL AND t.enqueued_at <= p_now AND t.workflow_id IS NULL
        AND coalesce(t.good_until > p_now, true)
      ORDER BY least(t.claim_generation, 1) DESC, t.sent_at, t.id LIMIT p_many - v_count FOR NO KEY UPDATE SKIP LOCKED);
    CONTINUE WHEN v_ids = '{}';
    UPDATE horsies_tasks t
    SET status = 'CANCELLED', finished_at = p_now, error_code = 'MERGED', merged_into = v_one.id, parked = false,
        result = horsies_error_result('MERGED', format('the equal task %s began after it was sent, and ran for it', v_one.id))
    WHERE t.id = ANY (v_ids) AND t.status = 'PENDING';
    PERFORM horsies_notify_finished(p_channel, v_ids);
    v_count := v_count + cardinality(v_ids);
  END LOOP;
  RETURN v_count;
END
$$;
