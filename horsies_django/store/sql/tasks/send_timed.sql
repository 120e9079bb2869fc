-- Inserts one task as tasks/send.sql does. Returns the OID of its table, and when the task was sent and is due.
-- Locks: none but the new row. Index: primary keys of horsies_queues and horsies_tasks.
SELECT sent.told, sent.sent_at, sent.enqueued_at FROM horsies_sent(%(ids)s, horsies_send(
  %(ids)s, %(kwargs)s, %(task_name)s, %(queue_name)s, %(lane)s, %(priority)s, %(delay)s, %(due_at)s, %(good_until)s, %(max_retries)s,
  %(options)s, %(told)s, %(good_for)s, %(now)s, %(codec)s)) AS sent
