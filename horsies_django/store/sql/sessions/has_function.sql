-- Returns whether a schema in the search path has a function of this name.
SELECT EXISTS (
  SELECT
  FROM pg_proc
  WHERE proname = %(name)s::text AND pg_function_is_visible(oid)
)
