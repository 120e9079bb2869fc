-- Returns how many nodes, and how many tasks, of a large run one transaction ends, withdraws, decides about or runs again; owed_at says
-- that others are left.
-- Locks: none. Index: none.
CREATE OR REPLACE FUNCTION horsies_part() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 1000 $$;
