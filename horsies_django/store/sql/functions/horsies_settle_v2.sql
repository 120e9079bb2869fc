-- Settle: write what became of running tasks, each with its attempt, fenced by worker and claim generation.
-- Moves RUNNING -> COMPLETED, FAILED. Returns the ids that landed, with their queues and partitions, which have a permit more now;
-- what is missing is for the caller to look into.
-- Locks: the task rows, never waiting: a row that somebody else holds is left out and comes back with the next pass.
-- Index: primary key.
CREATE FUNCTION horsies_settle_v2(p_worker uuid, p_outcomes jsonb, OUT ids uuid[], OUT queues text[], OUT keys text[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
BEGIN
  WITH outcome AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(p_outcomes) AS o (
      id uuid, generation int, status text, result jsonb, error_code text, error_message text, child_pid int, crashed boolean)
  ), held AS MATERIALIZED (
    SELECT t.id FROM horsies_tasks t
    WHERE t.id = ANY (ARRAY(SELECT outcome.id FROM outcome)) AND t.claimed_by = p_worker AND t.status = 'RUNNING'
    FOR NO KEY UPDATE SKIP LOCKED
  ), settled AS (
    UPDATE horsies_tasks t
    SET status = o.status, finished_at = v_now, result = o.result, error_code = o.error_code
    FROM outcome o
    WHERE t.id = ANY (ARRAY(SELECT held.id FROM held)) AND o.id = t.id
      AND t.claim_generation = o.generation AND t.claimed_by = p_worker AND t.status = 'RUNNING'
    RETURNING t.id, t.retry_count + 1 AS attempt, t.claim_generation, t.started_at, t.queue_name, t.partition_key
  ), attempt AS (
    INSERT INTO horsies_task_attempts (task_id, attempt, claim_generation, outcome, started_at, finished_at,
                                       error_code, error_message, worker_id, child_pid)
    SELECT s.id, s.attempt, s.claim_generation, CASE WHEN o.crashed THEN 'WORKER_FAILURE' ELSE o.status END,
           s.started_at, v_now, o.error_code, o.error_message, p_worker, o.child_pid
    FROM settled s JOIN outcome o ON o.id = s.id
  )
  SELECT coalesce(array_agg(s.id), '{}'), coalesce(array_agg(s.queue_name::text), '{}'), coalesce(array_agg(s.partition_key), '{}') INTO ids, queues, keys FROM settled s;
END
$$;
