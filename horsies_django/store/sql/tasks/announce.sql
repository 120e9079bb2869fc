-- Wakes the workers of a queue, after a task was sent without a notification and took so long that
-- workers may no longer look for it.
-- The payload 0 makes them scan everything, because the due time is not available here.
-- Locks: none (the commit takes the NOTIFY lock of PostgreSQL itself).
SELECT pg_notify(
  'horsies_' || left(md5(namespace.nspname), 8) || '_new',
  '0 ' || %(queue_name)s::text
)
FROM pg_class task_table
JOIN pg_namespace namespace ON namespace.oid = task_table.relnamespace
WHERE task_table.oid = %(table)s::oid
