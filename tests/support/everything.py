"""All database objects of the app in the current schema, one per line."""

from __future__ import annotations

EVERYTHING = """
SELECT 'column', table_name, column_name,
       concat_ws(' ', data_type, domain_name, is_nullable, column_default)
FROM information_schema.columns
WHERE table_schema = current_schema() AND table_name LIKE 'horsies%'
UNION ALL SELECT 'type', c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'c'
  AND c.relname LIKE 'horsies%' AND NOT a.attisdropped
UNION ALL SELECT 'index', tablename, indexname, replace(indexdef, current_schema() || '.', '')
FROM pg_indexes
WHERE schemaname = current_schema() AND tablename LIKE 'horsies%'
UNION ALL SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid)
FROM pg_constraint
WHERE connamespace = current_schema()::regnamespace AND conname LIKE 'horsies%' AND contype <> 'n'
UNION ALL SELECT 'storage', relname, NULL,
       coalesce(array_to_string(array_remove(reloptions, 'autovacuum_enabled=off'), ' '), '')
FROM pg_class -- other tests switch it off
WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relname LIKE 'horsies%'
UNION ALL SELECT 'function', proname, pg_get_function_arguments(oid),
       pg_get_function_result(oid) || md5(prosrc)
FROM pg_proc
WHERE pronamespace = current_schema()::regnamespace AND proname LIKE 'horsies%'
UNION ALL SELECT 'trigger', tgrelid::regclass::text, tgname, tgtype::text
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = current_schema()::regnamespace AND tgname LIKE 'horsies%'
UNION ALL SELECT 'sequence', sequencename, NULL, start_value::text FROM pg_sequences
WHERE schemaname = current_schema() AND sequencename LIKE 'horsies%'
"""
