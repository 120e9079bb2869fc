-- Inserts the tasks of one call in the transaction of the caller; see
-- functions/tasks/horsies_send.sql.
-- The function has one form, so its signature gives the types: casts would lengthen parsing by
-- almost half.
-- Returns: the OID of their table.
-- Moves: (none) -> PENDING.
-- Locks: none but the new rows.
SELECT horsies_send(
  %(ids)s, %(kwargs)s, %(task_name)s, %(queue_name)s, %(lane)s, %(priority)s,
  %(delay)s, %(due_at)s, %(good_until)s, %(max_retries)s, %(options)s, %(notified)s,
  %(good_for)s, %(now)s, %(codec)s
)
