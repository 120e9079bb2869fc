-- Returns the prefix of this installation's notification channels: one per schema, so that installations do not wake each other.
CREATE OR REPLACE FUNCTION horsies_channel() RETURNS text LANGUAGE sql STABLE AS $$
  SELECT 'horsies_' || left(md5(n.nspname), 8) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.oid = 'horsies_tasks'::regclass
$$;
