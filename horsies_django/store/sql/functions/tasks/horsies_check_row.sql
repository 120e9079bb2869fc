-- Refuses a row that violates a rule, because statements that read the row later would fail. Raises
-- check_violation, with the table, the rule and the key of the row. The block below creates the
-- triggers that call this function, one for each rule and table; the condition of a trigger is the
-- rule, and this function only raises.
--
-- The triggers are on all tables but that of tasks (see horsies_check_task) and those that get a
-- row for each task. PostgreSQL evaluates a condition without a call, and a NULL violates none. The
-- rules are no CHECK constraints, so that an upgrade does not have to read all rows.
-- Args: (of the trigger) the rule in words.
CREATE OR REPLACE FUNCTION horsies_check_row() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  v_row jsonb := to_jsonb(NEW);
  v_key text;
BEGIN
  SELECT
    string_agg(
      a.attname || ' ' || coalesce(v_row ->> a.attname, 'NULL'), ', ' ORDER BY a.attnum
    )
  INTO v_key
  FROM pg_index i
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
  WHERE i.indrelid = TG_RELID AND i.indisprimary;

  RAISE EXCEPTION USING
    ERRCODE = 'check_violation',
    TABLE = TG_TABLE_NAME,
    CONSTRAINT = TG_NAME,
    MESSAGE = format('a row of %s violates "%s": %s', TG_TABLE_NAME, TG_NAME, TG_ARGV[0]),
    DETAIL = 'The row is ' || left(v_key, 300) || '.';
END
$$;

DO $triggers$
DECLARE
  c_numbers CONSTANT text := '
    NEW.priority NOT BETWEEN 1 AND 100 OR NEW.max_concurrency < 0 OR NEW.local_limit < 0
    OR NEW.partition_max_concurrency < 0 OR NEW.partition_local_limit < 0
    OR NEW.partition_version NOT BETWEEN 0 AND 2147483646';
  c_rule CONSTANT text := '
    jsonb_typeof(NEW.partition_by_args) <> ''array''
    OR NEW.partition_by_args @? ''strict $[*] ? (@.type() <> "string")''';
  v_rule record;
BEGIN
  FOR v_rule IN
    SELECT
      target.relation,
      'moments' AS name,
      'each time lies between the years 2 and 9999' AS text,
      format(
        'least(%1$s) <= to_timestamp(-62100000000) OR greatest(%1$s) >= to_timestamp(253400000000)',
        string_agg('NEW.' || time_column.attname, ', ' ORDER BY time_column.attname)
      ) AS condition
    FROM unnest('{
      horsies_queues, horsies_prunings, horsies_workers, horsies_heartbeats, horsies_worker_states,
      horsies_waiters, horsies_schedules, horsies_schedule_ticks, horsies_audit,
      horsies_lost_records, horsies_history, horsies_workflows,
      horsies_workflow_signals}'::text[]
    ) AS target (relation)
    JOIN pg_class existing_table
      ON existing_table.relname = target.relation
      AND existing_table.relnamespace = current_schema()::regnamespace
    JOIN pg_attribute time_column ON time_column.attrelid = existing_table.oid
      AND NOT time_column.attisdropped
      AND time_column.atttypid = 'timestamptz'::regtype
      AND time_column.attname NOT IN ('reached_at', 'left_at')  -- horsies_prunings: times of a task
    GROUP BY target.relation

    UNION ALL

    SELECT
      target.relation,
      'floats',
      'each number is a finite one, and not negative',
      format(
        'least(%1$s) < 0 OR greatest(%1$s) > 1e15',
        string_agg('NEW.' || number_column.attname, ', ' ORDER BY number_column.attname)
      )
    FROM unnest('{
      horsies_workers, horsies_heartbeats, horsies_worker_states, horsies_history}'::text[]
    ) AS target (relation)
    JOIN pg_class existing_table
      ON existing_table.relname = target.relation
      AND existing_table.relnamespace = current_schema()::regnamespace
    JOIN pg_attribute number_column ON number_column.attrelid = existing_table.oid
      AND NOT number_column.attisdropped
      AND number_column.atttypid = 'float8'::regtype
    GROUP BY target.relation

    UNION ALL

    SELECT listed_rule.relation, listed_rule.name, listed_rule.text, listed_rule.condition
    FROM (VALUES
      ('horsies_queues', 'numbers', 'priority is from 1 to 100, limits are not negative',
       c_numbers),
      ('horsies_limits', 'numbers', 'priority is from 1 to 100, limits are not negative',
       c_numbers),
      ('horsies_queues', 'rule', 'partition_by_args is an array of names, or NULL', c_rule),
      ('horsies_limits', 'rule', 'partition_by_args is an array of names, or NULL', c_rule),
      ('horsies_queues', 'name', 'it is not empty', 'NEW.name = '''''),
      ('horsies_schedules', 'name', 'it is not empty', 'NEW.name = '''''),
      ('horsies_heartbeats', 'holding', 'it is an array, or NULL',
       'jsonb_typeof(NEW.holding) <> ''array'''),
      ('horsies_queues', 'override', 'it is an object of limits, or NULL', '
         jsonb_typeof(NEW.override) <> ''object''
         OR NEW.override @? ''strict $.* ? (@.type() <> "null" && @.type() <> "number")''
         OR NEW.override @? ''strict $.* ? (@ < 0 || @ > 2147483647 || @ <> @.floor())'''),
      ('horsies_queues', 'sweep', 'it is an object, or NULL',
       'jsonb_typeof(NEW.sweep) <> ''object'''),
      ('horsies_workers', 'lists', 'queues and task_names are arrays of names', '
         jsonb_typeof(NEW.queues) <> ''array'' OR jsonb_typeof(NEW.task_names) <> ''array''
         OR NEW.queues @? ''strict $[*] ? (@.type() <> "string")''
         OR NEW.task_names @? ''strict $[*] ? (@.type() <> "string")'''),
      ('horsies_history', 'buckets', 'they are 16 counts, none of which is negative', '
         cardinality(NEW.buckets) <> 16 OR array_position(NEW.buckets, NULL) IS NOT NULL
         OR 0 > ANY (NEW.buckets) OR NEW.n < 0 OR NEW.width < 1'),
      ('horsies_schedules', 'objects', 'declared and changes are objects', '
         jsonb_typeof(NEW.declared) <> ''object'' OR jsonb_typeof(NEW.changes) <> ''object''')
    ) AS listed_rule (relation, name, text, condition)
    JOIN pg_class existing_table  -- a later migration may make it
      ON existing_table.relname = listed_rule.relation
      AND existing_table.relnamespace = current_schema()::regnamespace
  LOOP
    EXECUTE format(
      'CREATE OR REPLACE TRIGGER %I AFTER INSERT OR UPDATE ON %I FOR EACH ROW WHEN (%s) '
        'EXECUTE FUNCTION horsies_check_row(%L)',
      v_rule.relation || '_' || v_rule.name, v_rule.relation, v_rule.condition, v_rule.text
    );
  END LOOP;
END
$triggers$;
