-- Inserts one task as tasks/send.sql does. Returns the OID of its table, and when the task was sent and is due.
-- The second function reads the new row; it gets the result of the first one, so it is called after it.
-- Locks: none but the new row. Index: primary keys of horsies_queues and horsies_tasks.
SELECT sent.told, task.sent_at, task.enqueued_at
FROM (
  SELECT horsies_send(
    %(ids)s::uuid[], %(kwargs)s::jsonb, %(task_name)s::text, %(queue_name)s::text, %(lane)s::text, %(priority)s::smallint,
    %(delay)s::interval, %(due_at)s::timestamptz, %(good_until)s::timestamptz, %(max_retries)s::smallint, %(options)s::jsonb,
    %(told)s::oid, %(good_for)s::interval, %(now)s::timestamptz, %(codec)s::text) AS told
  OFFSET 0
) AS sent CROSS JOIN LATERAL horsies_sent(%(ids)s::uuid[], sent.told) AS task
