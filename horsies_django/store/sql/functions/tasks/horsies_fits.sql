-- Checks a row of tasks, for the table's only CHECK constraint, which calls it unless a pass writes the row (horsies.pass). Raises
-- check_violation with the violated rule, so that no row can make later statements fail. The contents of options are checked when they are
-- read, because they differ between releases. Times must lie in the years that Python supports in every time zone: 2 to 9999, without the
-- last days.
-- It is one function because PostgreSQL prepares every CHECK again for each statement: an INSERT of one row takes 34 us of CPU with it, 64
-- with four CHECKs in SQL, 21 without any. It is plpgsql because a function in SQL would be inlined. It must not read tables: pg_dump
-- restores it before them.
-- Locks: none. Index: none.
CREATE OR REPLACE FUNCTION horsies_fits(
  p_status varchar, p_claimed_by uuid, p_finished_at timestamptz, p_error_code varchar, p_priority smallint, p_lane varchar, p_kwargs json,
  p_options jsonb, p_partition_key text, p_claim_generation int, p_retry_count smallint, p_max_retries smallint,
  p_sent_at timestamptz, p_enqueued_at timestamptz, p_good_until timestamptz, p_claimed_at timestamptz, p_claim_expires_at timestamptz,
  p_started_at timestamptz, p_cancel_requested_at timestamptz, p_next_retry_at timestamptz, p_redacted_at timestamptz
) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  v_rule text := CASE  -- the rule that the row violates; NULL values violate none
    WHEN p_priority NOT BETWEEN 1 AND 201 THEN 'priority: it is from 1 to 201'
    WHEN p_lane NOT IN ('sync', 'async') THEN 'lane: it is sync or async'
    WHEN json_typeof(p_kwargs) <> 'object' THEN 'kwargs: they are an object of arguments by name'
    WHEN jsonb_typeof(p_options) <> 'object' THEN 'options: they are an object, or NULL'
    WHEN length(p_partition_key) > 200 THEN 'partition_key: it has 200 characters at most'
    WHEN p_claim_generation < 0 OR p_retry_count NOT BETWEEN 0 AND 32766 OR p_max_retries NOT BETWEEN 0 AND 32766 THEN
      'numbers: claim_generation, retry_count and max_retries are not negative, the latter two below 32767'
    WHEN least(p_sent_at, p_enqueued_at, p_good_until, p_claimed_at, p_claim_expires_at, p_started_at, p_cancel_requested_at,
               p_next_retry_at, p_redacted_at, p_finished_at) <= to_timestamp(-62100000000)
      OR greatest(p_sent_at, p_enqueued_at, p_good_until, p_claimed_at, p_claim_expires_at, p_started_at, p_cancel_requested_at,
                  p_next_retry_at, p_redacted_at, p_finished_at) >= to_timestamp(253400000000) THEN
      'moments: each lies between the years 2 and 9999'
    WHEN CASE p_status
           WHEN 'PENDING' THEN p_claimed_by IS NOT NULL OR p_finished_at IS NOT NULL
           WHEN 'RUNNING' THEN p_claimed_by IS NULL OR p_finished_at IS NOT NULL
           WHEN 'CLAIMED' THEN p_claimed_by IS NULL OR p_finished_at IS NOT NULL
           WHEN 'COMPLETED' THEN p_finished_at IS NULL
           WHEN 'FAILED' THEN p_finished_at IS NULL
           WHEN 'CANCELLED' THEN p_finished_at IS NULL
           WHEN 'EXPIRED' THEN p_finished_at IS NULL
           ELSE true END THEN
      'status: it contradicts who holds the task and whether it has finished'
    WHEN (p_error_code IS NULL) = (p_status IN ('FAILED', 'CANCELLED', 'EXPIRED')) THEN
      'error_code: a task that is FAILED, CANCELLED or EXPIRED has one, and no other has' END;
BEGIN
  IF v_rule IS NULL THEN
    RETURN true;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'check_violation', TABLE = 'horsies_tasks', CONSTRAINT = 'horsies_tasks_' || split_part(v_rule, ':', 1),
    MESSAGE = 'a row of horsies_tasks violates "horsies_tasks_' || split_part(v_rule, ':', 1) || '"' || substr(v_rule, strpos(v_rule, ':'));
END
$$;
