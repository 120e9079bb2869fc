-- Returns the prefix of this installation's notification channels: one per schema, so that installations do not wake each other.
-- Locks: none. Index: the system catalogue's.
SELECT 'horsies_' || left(md5(namespace.nspname), 8) FROM pg_class task_table
JOIN pg_namespace namespace ON namespace.oid = task_table.relnamespace WHERE task_table.oid = 'horsies_tasks'::regclass
