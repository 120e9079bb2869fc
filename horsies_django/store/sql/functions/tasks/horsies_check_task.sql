-- Checks a row of tasks, whichever role writes it. Raises check_violation with the violated rule
-- and the id, so that no row can make later statements fail.
--
-- The contents of options are checked when they are read, because they differ between releases.
-- Times must lie in the years that Python supports in every time zone: 2 to 9999, without the last
-- days.
--
-- It is a trigger because PostgreSQL prepares a CHECK again for each statement: with its 21
-- columns, that was a twelfth of a pass. A pass turns the second trigger off by a setting
-- (horsies.pass), for the columns that it writes for each task. Any role may turn that on, so it
-- counts for no INSERT and for no other column, and every reader of these columns takes any value.
-- The second trigger accepts a row that violated a rule before: so it can be cancelled, rescued and
-- unparked.
--
-- Both triggers name all columns of the table: an upgrade adds some after these triggers were made
-- for the first time.
CREATE OR REPLACE FUNCTION horsies_check_task() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_rule text;  -- the rule that the row violates; NULL values violate none
  v_violated text;  -- by the new row; then a second round looks at the row as it was
BEGIN
  LOOP
    v_rule := CASE
      WHEN NEW.priority NOT BETWEEN 1 AND 201 THEN 'priority: it is from 1 to 201'
      WHEN NEW.lane NOT IN ('sync', 'async') THEN 'lane: it is sync or async'
      WHEN json_typeof(NEW.kwargs) <> 'object' THEN
        'kwargs: they are an object of arguments by name'
      -- compression makes texts 255 times as small at most
      WHEN pg_column_size(NEW.kwargs) > 262144
        AND octet_length(NEW.kwargs::text) > 67108864
      THEN
        'size: the arguments have 64 MiB at most'
      WHEN jsonb_typeof(NEW.options) <> 'object' THEN 'options: they are an object, or NULL'
      WHEN length(NEW.partition_key) > 200 THEN 'partition_key: it has 200 characters at most'
      WHEN NEW.claim_generation < 0
        OR NEW.retry_count NOT BETWEEN 0 AND 32766
        OR NEW.max_retries NOT BETWEEN 0 AND 32766
        OR NEW.snooze_count NOT BETWEEN 0 AND 32766
        OR NEW.attempts_before NOT BETWEEN 0 AND 32766
      THEN
        'numbers: claim_generation, retry_count, max_retries, snooze_count and attempts_before are '
          'not negative, all but the first below 32767'
      WHEN least(
            NEW.sent_at, NEW.enqueued_at, NEW.good_until, NEW.claimed_at, NEW.claim_expires_at,
            NEW.started_at, NEW.cancel_requested_at, NEW.next_retry_at, NEW.redacted_at,
            NEW.finished_at, NEW.advanced_at
          ) <= to_timestamp(-62100000000)
        OR greatest(
            NEW.sent_at, NEW.enqueued_at, NEW.good_until, NEW.claimed_at, NEW.claim_expires_at,
            NEW.started_at, NEW.cancel_requested_at, NEW.next_retry_at, NEW.redacted_at,
            NEW.finished_at, NEW.advanced_at
          ) >= to_timestamp(253400000000)
      THEN
        'moments: each lies between the years 2 and 9999'
      WHEN NEW.sent_at > clock_timestamp() + interval '100 years' THEN
        'sent_at: it is at most 100 years after the clock of the database'
      WHEN CASE NEW.status
             WHEN 'PENDING' THEN NEW.claimed_by IS NOT NULL OR NEW.finished_at IS NOT NULL
             WHEN 'RUNNING' THEN NEW.claimed_by IS NULL OR NEW.finished_at IS NOT NULL
             WHEN 'CLAIMED' THEN NEW.claimed_by IS NULL OR NEW.finished_at IS NOT NULL
             WHEN 'COMPLETED' THEN NEW.finished_at IS NULL
             WHEN 'FAILED' THEN NEW.finished_at IS NULL
             WHEN 'CANCELLED' THEN NEW.finished_at IS NULL
             WHEN 'EXPIRED' THEN NEW.finished_at IS NULL
             ELSE true
           END
      THEN
        'status: it contradicts who holds the task and whether it has finished'
      WHEN (NEW.error_code IS NULL) = (NEW.status IN ('FAILED', 'CANCELLED', 'EXPIRED')) THEN
        'error_code: a task that is FAILED, CANCELLED or EXPIRED has one, and no other has'
      WHEN NEW.merged_into IS NOT NULL
        AND (NEW.error_code IS DISTINCT FROM 'MERGED' OR NEW.merged_into = NEW.id)
      THEN
        'merged_into: a task that is CANCELLED as MERGED has one, another task, and no other has'
      WHEN NEW.order_stop IS NOT NULL
        AND (NEW.status <> 'FAILED'
             OR NEW.ordered IS NOT TRUE
             OR NEW.order_stop NOT IN ('stop', 'cancel'))
      THEN
      'order_stop: a FAILED task of an ordered queue may have one, stop or cancel, and no other has'
    END;

    IF v_violated IS NOT NULL THEN  -- the second round
      EXIT WHEN v_rule IS NULL;
      RETURN NULL;
    END IF;

    IF v_rule IS NULL THEN
      RETURN NULL;
    END IF;

    v_violated := v_rule;
    EXIT WHEN TG_NAME <> 'horsies_tasks_moves';
    NEW := OLD;
  END LOOP;

  RAISE EXCEPTION USING
    ERRCODE = 'check_violation',
    TABLE = 'horsies_tasks',
    CONSTRAINT = 'horsies_tasks_' || split_part(v_violated, ':', 1),
    MESSAGE =
      'a row of horsies_tasks violates "horsies_tasks_' || split_part(v_violated, ':', 1) || '"'
      || substr(v_violated, strpos(v_violated, ':')),
    DETAIL = 'The row is id ' || NEW.id || '.';
END
$$;

DO $triggers$
DECLARE
  c_written CONSTANT text[] := '{
    status, parked, partition_key, partition_version, ordered, order_stop, merged_into, enqueued_at,
    claimed_at, claimed_by, claim_generation, claim_expires_at, started_at, finished_at,
    retry_count, snooze_count, next_retry_at, result, error_code, advanced_at}';
  v_columns record;
BEGIN
  SELECT
    string_agg(a.attname, ', ' ORDER BY a.attname)
      FILTER (WHERE a.attname <> ALL (c_written)) AS fixed,
    string_agg(a.attname, ', ' ORDER BY a.attname)
      FILTER (WHERE a.attname = ANY (c_written)) AS written
  INTO v_columns
  FROM pg_attribute a
  WHERE a.attrelid = 'horsies_tasks'::regclass AND a.attnum > 0 AND NOT a.attisdropped;

  EXECUTE format(
    'CREATE OR REPLACE TRIGGER horsies_tasks_fits AFTER INSERT OR UPDATE OF %s ON horsies_tasks '
      'FOR EACH ROW EXECUTE FUNCTION horsies_check_task()',
    v_columns.fixed
  );

  EXECUTE format(
    'CREATE OR REPLACE TRIGGER horsies_tasks_moves AFTER UPDATE OF %s ON horsies_tasks '
      'FOR EACH ROW WHEN (current_setting(''horsies.pass'', true) IS DISTINCT FROM ''on'') '
      'EXECUTE FUNCTION horsies_check_task()',
    v_columns.written
  );
END
$triggers$;
