-- Release: give tasks back whose user code never began, fenced by worker and claim generation. No attempt is used.
-- Moves RUNNING -> PENDING and wakes the workers of each queue concerned. Returns the ids that were given back.
-- Locks: the task rows, never waiting. Index: primary key.
CREATE FUNCTION horsies_release_v1(p_worker uuid, p_claims jsonb, p_channel text) RETURNS uuid[] LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_released uuid[];
  v_woken int;
BEGIN
  WITH claim AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(p_claims) AS c (id uuid, generation int)
  ), held AS MATERIALIZED (
    SELECT t.id FROM horsies_tasks t
    WHERE t.id = ANY (ARRAY(SELECT claim.id FROM claim)) AND t.claimed_by = p_worker AND t.status = 'RUNNING'
    FOR NO KEY UPDATE SKIP LOCKED
  ), released AS (
    UPDATE horsies_tasks t
    SET status = 'PENDING', claimed_by = NULL, claimed_at = NULL, claim_expires_at = NULL, started_at = NULL
    FROM claim c
    WHERE t.id = ANY (ARRAY(SELECT held.id FROM held)) AND c.id = t.id
      AND t.claim_generation = c.generation AND t.claimed_by = p_worker AND t.status = 'RUNNING'
    RETURNING t.id, t.queue_name, t.enqueued_at
  ), woken AS (
    SELECT pg_notify(p_channel || '_new', extract(epoch FROM min(r.enqueued_at)) || ' ' || r.queue_name)
    FROM released r GROUP BY r.queue_name
  )
  SELECT array_agg(r.id), (SELECT count(*) FROM woken) INTO v_released, v_woken FROM released r;
  RETURN v_released;
END
$$;
