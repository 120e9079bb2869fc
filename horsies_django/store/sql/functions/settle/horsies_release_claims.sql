-- Releases tasks whose code never began, fenced by worker and claim generation. No attempt is used. Tasks that were asked to cancel are
-- cancelled instead.
-- Moves CLAIMED, RUNNING -> PENDING, CANCELLED and wakes the workers of each queue. Returns the queues and partitions of what was
-- released, the ids that were missed, and the earliest due time of those that wait again.
-- Locks: the task rows, skipping locked ones. Index: primary key.
CREATE FUNCTION horsies_release_claims(p_worker uuid, p_claims jsonb, p_channel text,
                                OUT queues text[], OUT keys text[], OUT missed uuid[], OUT earliest timestamptz) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_ids uuid[];
  v_cancelled uuid[];
BEGIN
  WITH claim AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(p_claims) AS c (id uuid, generation int)
  ), held AS MATERIALIZED (
    SELECT t.id FROM horsies_tasks t
    WHERE t.id = ANY (ARRAY(SELECT claim.id FROM claim)) AND t.claimed_by = p_worker AND t.status IN ('CLAIMED', 'RUNNING')
    FOR NO KEY UPDATE SKIP LOCKED
  ), released AS (
    UPDATE horsies_tasks t
    SET status = CASE WHEN t.cancel_requested_at IS NULL THEN 'PENDING' ELSE 'CANCELLED' END,
        finished_at = CASE WHEN t.cancel_requested_at IS NOT NULL THEN v_now END,
        error_code = CASE WHEN t.cancel_requested_at IS NOT NULL THEN 'TASK_CANCELLED' END,
        result = CASE WHEN t.cancel_requested_at IS NOT NULL
                   THEN horsies_error_result('TASK_CANCELLED', 'the task was cancelled before it started') END,
        claimed_by = NULL, claimed_at = NULL, claim_expires_at = NULL, started_at = NULL
    FROM claim c
    WHERE t.id = ANY (ARRAY(SELECT held.id FROM held)) AND c.id = t.id
      AND t.claim_generation = c.generation AND t.claimed_by = p_worker AND t.status IN ('CLAIMED', 'RUNNING')
    RETURNING t.id, t.queue_name, t.partition_key, t.finished_at, t.enqueued_at
  )
  SELECT coalesce(array_agg(r.id), '{}'), coalesce(array_agg(r.queue_name::text), '{}'), coalesce(array_agg(r.partition_key), '{}'),
         coalesce(array_agg(r.id) FILTER (WHERE r.finished_at IS NOT NULL), '{}'),
         min(r.enqueued_at) FILTER (WHERE r.finished_at IS NULL)
  INTO v_ids, queues, keys, v_cancelled, earliest FROM released r;
  missed := ARRAY(SELECT c.id FROM jsonb_to_recordset(p_claims) AS c (id uuid) WHERE c.id <> ALL (v_ids));
  PERFORM horsies_notify_finished(p_channel, v_cancelled);
  PERFORM pg_notify(p_channel || '_new', extract(epoch FROM min(t.enqueued_at)) || ' ' || t.queue_name)
  FROM horsies_tasks t WHERE t.id = ANY (v_ids) AND t.status = 'PENDING' GROUP BY t.queue_name;
END
$$;
