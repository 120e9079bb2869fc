-- Sends a copy of a finished task that was not redacted: a new row, due now, that refers to the old one. Returns the status of the old task,
-- whether it was redacted, and whether it was copied.
-- Locks: none but the new row. Index: primary key.
WITH old AS (
  SELECT * FROM horsies_tasks task WHERE task.id = %(id)s::uuid
), sent AS (
  INSERT INTO horsies_tasks (id, task_name, queue_name, lane, priority, kwargs, sent_at, enqueued_at, partition_key, partition_version,
                             max_retries, options, codec, copy_of)
  SELECT %(new)s::uuid, old.task_name, old.queue_name, old.lane, old.priority, old.kwargs, clock_timestamp(), now(), old.partition_key,
         old.partition_version, old.max_retries, old.options, old.codec, old.id
  FROM old WHERE old.finished_at IS NOT NULL AND old.redacted_at IS NULL
  RETURNING 1
)
SELECT old.status, old.redacted_at IS NOT NULL, EXISTS (SELECT FROM sent) FROM old
