-- Inserts one task as tasks/send.sql does, unless another one has its digest.
-- The function has one form, so its signature gives the types.
-- Locks: as horsies_send_once.
SELECT *
FROM horsies_send_once(
  %(digest)s, %(arguments)s, %(until)s, %(keep)s, %(patience)s,
  %(ids)s, %(kwargs)s, %(task_name)s, %(queue_name)s, %(lane)s, %(priority)s,
  %(delay)s, %(due_at)s, %(good_until)s, %(max_retries)s, %(options)s, %(notified)s,
  %(good_for)s, %(now)s, %(codec)s
)
