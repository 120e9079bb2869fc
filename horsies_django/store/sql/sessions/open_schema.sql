-- Returns the schema of the tables, or the one in which "migrate" would create them, if every role
-- may create objects in it.
SELECT n.nspname::text
FROM pg_namespace n
WHERE n.oid = coalesce(
    (SELECT c.relnamespace FROM pg_class c WHERE c.oid = to_regclass('horsies_tasks')),
    to_regnamespace(quote_ident(current_schema()))
  )
  AND has_schema_privilege('public', n.oid, 'CREATE')
