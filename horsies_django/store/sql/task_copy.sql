-- Send a task once more that failed, expired or was cancelled, unless it was redacted: a new row, due now, with its arguments and
-- options. Tells the status of the old one, and whether it was copied.
-- Locks: none but the new row. Index: primary key.
WITH old AS (
  SELECT * FROM horsies_tasks task WHERE task.id = %(id)s::uuid
), sent AS (
  INSERT INTO horsies_tasks (id, task_name, queue_name, lane, priority, kwargs, sent_at, enqueued_at, partition_key, partition_version,
                             max_retries, options)
  SELECT %(new)s::uuid, old.task_name, old.queue_name, old.lane, old.priority, old.kwargs, clock_timestamp(), now(), old.partition_key,
         old.partition_version, old.max_retries, old.options
  FROM old WHERE old.status IN ('FAILED', 'EXPIRED', 'CANCELLED') AND old.redacted_at IS NULL
  RETURNING 1
)
SELECT old.status, EXISTS (SELECT FROM sent) FROM old
