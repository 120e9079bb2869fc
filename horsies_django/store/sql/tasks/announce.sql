-- Wakes the workers of a queue after a task was sent without a notification, if its transaction
-- took so long that workers may have stopped scanning for it.
-- The time 0 in the payload makes them scan all due times of the queue, because the due time of the
-- task is not available here. The channel is that of the task's table, not of the search path as in
-- horsies_channel.
-- Locks: none (the commit takes the NOTIFY lock of PostgreSQL itself).
SELECT pg_notify(
  'horsies_' || left(md5(namespace.nspname), 8) || '_new',
  '0 ' || %(queue_name)s::text
)
FROM pg_class task_table
JOIN pg_namespace namespace ON namespace.oid = task_table.relnamespace
WHERE task_table.oid = %(table)s::oid
