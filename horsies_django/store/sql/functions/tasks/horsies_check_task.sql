-- Checks a row of tasks, whoever writes it: a trigger calls it unless a pass writes the row (horsies.pass). Raises check_violation with the
-- violated rule, so that no row can make later statements fail. The contents of options are checked when they are read, because they differ
-- between releases. Times must lie in the years that Python supports in every time zone: 2 to 9999, without the last days.
-- It is a trigger because PostgreSQL prepares a CHECK again for each statement: with its 21 columns, that was a twelfth of a pass.
CREATE OR REPLACE FUNCTION horsies_check_task() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_rule text := CASE  -- the rule that the row violates; NULL values violate none
    WHEN NEW.priority NOT BETWEEN 1 AND 201 THEN 'priority: it is from 1 to 201'
    WHEN NEW.lane NOT IN ('sync', 'async') THEN 'lane: it is sync or async'
    WHEN json_typeof(NEW.kwargs) <> 'object' THEN 'kwargs: they are an object of arguments by name'
    WHEN jsonb_typeof(NEW.options) <> 'object' THEN 'options: they are an object, or NULL'
    WHEN length(NEW.partition_key) > 200 THEN 'partition_key: it has 200 characters at most'
    WHEN NEW.claim_generation < 0 OR NEW.retry_count NOT BETWEEN 0 AND 32766 OR NEW.max_retries NOT BETWEEN 0 AND 32766 THEN
      'numbers: claim_generation, retry_count and max_retries are not negative, the latter two below 32767'
    WHEN least(NEW.sent_at, NEW.enqueued_at, NEW.good_until, NEW.claimed_at, NEW.claim_expires_at, NEW.started_at, NEW.cancel_requested_at,
               NEW.next_retry_at, NEW.redacted_at, NEW.finished_at) <= to_timestamp(-62100000000)
      OR greatest(NEW.sent_at, NEW.enqueued_at, NEW.good_until, NEW.claimed_at, NEW.claim_expires_at, NEW.started_at, NEW.cancel_requested_at,
                  NEW.next_retry_at, NEW.redacted_at, NEW.finished_at) >= to_timestamp(253400000000) THEN
      'moments: each lies between the years 2 and 9999'
    WHEN CASE NEW.status
           WHEN 'PENDING' THEN NEW.claimed_by IS NOT NULL OR NEW.finished_at IS NOT NULL
           WHEN 'RUNNING' THEN NEW.claimed_by IS NULL OR NEW.finished_at IS NOT NULL
           WHEN 'CLAIMED' THEN NEW.claimed_by IS NULL OR NEW.finished_at IS NOT NULL
           WHEN 'COMPLETED' THEN NEW.finished_at IS NULL
           WHEN 'FAILED' THEN NEW.finished_at IS NULL
           WHEN 'CANCELLED' THEN NEW.finished_at IS NULL
           WHEN 'EXPIRED' THEN NEW.finished_at IS NULL
           ELSE true END THEN
      'status: it contradicts who holds the task and whether it has finished'
    WHEN (NEW.error_code IS NULL) = (NEW.status IN ('FAILED', 'CANCELLED', 'EXPIRED')) THEN
      'error_code: a task that is FAILED, CANCELLED or EXPIRED has one, and no other has' END;
BEGIN
  IF v_rule IS NULL THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'check_violation', TABLE = 'horsies_tasks', CONSTRAINT = 'horsies_tasks_' || split_part(v_rule, ':', 1),
    MESSAGE = 'a row of horsies_tasks violates "horsies_tasks_' || split_part(v_rule, ':', 1) || '"' || substr(v_rule, strpos(v_rule, ':'));
END
$$;
CREATE OR REPLACE TRIGGER horsies_tasks_fits AFTER INSERT OR UPDATE ON horsies_tasks FOR EACH ROW
  WHEN (current_setting('horsies.pass', true) IS DISTINCT FROM 'on') EXECUTE FUNCTION horsies_check_task();
