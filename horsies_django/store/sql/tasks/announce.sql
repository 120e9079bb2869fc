-- Wake the workers of a queue: a task was sent to it without a word, and took so long that they may look for it no more.
-- 0: they are to look everywhere, since when it is due is not known here.
-- Locks: none (the commit takes PostgreSQL's own NOTIFY lock). Index: the system catalogue's.
SELECT pg_notify('horsies_' || left(md5(namespace.nspname), 8) || '_new', '0 ' || %(queue_name)s::text)
FROM pg_class task_table JOIN pg_namespace namespace ON namespace.oid = task_table.relnamespace
WHERE task_table.oid = %(table)s::oid
