-- Inserts one task as tasks/send.sql does. Returns the OID of its table, and when the task was sent and is due.
-- Locks: none but the new row. Index: primary keys of horsies_queues and horsies_tasks.
SELECT sent.told, sent.sent_at, sent.enqueued_at FROM horsies_sent(%(ids)s::uuid[], horsies_send(
  %(ids)s::uuid[], %(kwargs)s::jsonb, %(task_name)s::text, %(queue_name)s::text, %(lane)s::text, %(priority)s::smallint,
  %(delay)s::interval, %(due_at)s::timestamptz, %(good_until)s::timestamptz, %(max_retries)s::smallint, %(options)s::jsonb,
  %(told)s::oid, %(good_for)s::interval, %(now)s::timestamptz, %(codec)s::text)) AS sent
