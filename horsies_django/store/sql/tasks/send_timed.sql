-- Inserts one task as tasks/send.sql does.
-- The clock is read here and given to the function, because in a SERIALIZABLE transaction a read of
-- the new row would conflict with the next INSERTs of others.
-- Returns: the OID of its table, when the task was sent, and when it is due.
-- Locks: none but the new row.
SELECT
  horsies_send(
    %(ids)s, %(kwargs)s, %(task_name)s, %(queue_name)s, %(lane)s, %(priority)s,
    %(delay)s, %(due_at)s, %(good_until)s, %(max_retries)s, %(options)s, %(notified)s,
    %(good_for)s, sent.at, %(codec)s
  ),
  sent.at,
  coalesce(%(due_at)s::timestamptz, sent.at + %(delay)s::interval, sent.at)
FROM (SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS at) AS sent
