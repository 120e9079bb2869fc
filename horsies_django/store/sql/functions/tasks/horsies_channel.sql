-- Returns the prefix of the notification channels of this installation. Each schema has its own, so
-- that installations do not wake each other.
CREATE OR REPLACE FUNCTION horsies_channel() RETURNS text LANGUAGE sql STABLE AS $$
  SELECT 'horsies_' || left(md5(n.nspname), 8)
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.oid = 'horsies_tasks'::regclass
$$;
