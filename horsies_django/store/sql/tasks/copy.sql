-- Sends a copy of a task that failed, expired or was cancelled, unless it was redacted: a new row, due now, that refers to the old one.
-- A task that already has a copy is only copied with "again"; the caller has locked the old row, so no other copy can appear meanwhile.
-- Returns the status of the old task, the id and status of its newest earlier copy, and whether it was copied now.
-- Locks: none but the new row. Index: primary key, horsies_tasks_copies.
WITH old AS (
  SELECT * FROM horsies_tasks task WHERE task.id = %(id)s::uuid
), copy AS (
  SELECT task.id, task.status FROM horsies_tasks task WHERE task.copy_of = %(id)s::uuid ORDER BY task.id DESC LIMIT 1
), sent AS (
  INSERT INTO horsies_tasks (id, task_name, queue_name, lane, priority, kwargs, sent_at, enqueued_at, partition_key, partition_version,
                             max_retries, options, codec, copy_of)
  SELECT %(new)s::uuid, old.task_name, old.queue_name, old.lane, old.priority, old.kwargs, clock_timestamp(), now(), old.partition_key,
         old.partition_version, old.max_retries, old.options, old.codec, old.id
  FROM old WHERE old.status IN ('FAILED', 'EXPIRED', 'CANCELLED') AND old.redacted_at IS NULL
    AND (%(again)s::boolean OR NOT EXISTS (SELECT FROM copy))
  RETURNING 1
)
SELECT old.status, copy.id, copy.status, EXISTS (SELECT FROM sent) FROM old LEFT JOIN copy ON true
