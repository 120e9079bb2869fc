-- Gives a new task its place in the order of its partition, if its queue has a policy for
-- partitions. It is a trigger, so it places each task that is inserted, by any statement. A row
-- that was inserted without the present version of the rule gets its partition first.
-- In an ordered queue the task comes after all tasks of its partition that are visible, even if the
-- clock says otherwise. It does not come after a task that was sent more than a day in the future:
-- no sender does this, and there may be no time after it. A delay or a priority of its own is
-- refused, because the order is that of sending.
-- Index: primary key of horsies_queues; horsies_tasks_order, whose condition the queries repeat.
CREATE OR REPLACE FUNCTION horsies_place_task() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
  v_queue record;
  v_last timestamptz := greatest(NEW.sent_at, clock_timestamp()) + interval '1 day';
BEGIN
  SELECT q.partition_policy, q.partition_version, q.partition_by_args, q.partition_by_task
  INTO v_queue
  FROM horsies_queues q
  WHERE q.name = NEW.queue_name;

  IF v_queue.partition_policy IS NULL THEN
    RETURN NEW;
  END IF;

  IF NEW.partition_version IS DISTINCT FROM v_queue.partition_version THEN
    NEW.partition_version := v_queue.partition_version;
    NEW.partition_key := horsies_partition_key(
      v_queue.partition_by_args, v_queue.partition_by_task, NEW.kwargs, NEW.task_name, NEW.codec
    );
  END IF;

  NEW.ordered := true;
  IF v_queue.partition_policy <> 'coalesce' THEN
    IF NEW.enqueued_at > greatest(NEW.sent_at, clock_timestamp())
      OR NEW.priority NOT IN (100, 101)
    THEN
      RAISE EXCEPTION USING
        ERRCODE = 'invalid_parameter_value',
        MESSAGE = format(
          'queue "%s" is ordered: its tasks run in the order in which they were sent, '
            'without a delay or a priority',
          NEW.queue_name
        );
    END IF;

    -- the last of the tasks that have not begun, and the last of the others: each has its own part
    -- of the index
    NEW.sent_at := greatest(
      NEW.sent_at,
      (
        SELECT t.sent_at + interval '1 microsecond'
        FROM horsies_tasks t
        WHERE t.queue_name = NEW.queue_name
          AND t.partition_key = NEW.partition_key
          AND t.ordered
          AND (t.finished_at IS NULL OR t.order_stop IS NOT NULL)
          AND least(t.claim_generation, 1) = 0
          AND t.sent_at <= v_last
        ORDER BY t.sent_at DESC
        LIMIT 1
      ),
      (
        SELECT t.sent_at + interval '1 microsecond'
        FROM horsies_tasks t
        WHERE t.queue_name = NEW.queue_name
          AND t.partition_key = NEW.partition_key
          AND t.ordered
          AND (t.finished_at IS NULL OR t.order_stop IS NOT NULL)
          AND least(t.claim_generation, 1) = 1
          AND t.sent_at <= v_last
        ORDER BY t.sent_at DESC
        LIMIT 1
      )
    );
  END IF;
  RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER horsies_tasks_place BEFORE INSERT ON horsies_tasks
FOR EACH ROW
WHEN (
  NEW.finished_at IS NULL
  AND (NEW.partition_key IS NOT NULL OR NEW.partition_version IS NULL)
)
EXECUTE FUNCTION horsies_place_task();
