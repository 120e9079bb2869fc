-- Inserts the tasks of one call, PENDING, in the caller's transaction; see functions/tasks/horsies_send.sql. Returns the OID of their
-- table.
-- Locks: none but the new rows. Index: primary key of horsies_queues.
SELECT horsies_send(
  %(ids)s::uuid[], %(kwargs)s::jsonb, %(task_name)s::text, %(queue_name)s::text, %(lane)s::text, %(priority)s::smallint,
  %(delay)s::interval, %(due_at)s::timestamptz, %(good_until)s::timestamptz, %(max_retries)s::smallint, %(options)s::jsonb,
  %(told)s::oid, %(good_for)s::interval, %(now)s::timestamptz, %(codec)s::text)
