-- Returns the digest of a unique task, by which it is found among the keys of sends, from its
-- options; NULL if the task is not unique.
CREATE OR REPLACE FUNCTION horsies_unique_digest(p_options jsonb) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN p_options #>> '{unique,digest}' ~ '^([0-9a-f]{2})+$' THEN
      decode(p_options #>> '{unique,digest}', 'hex')
    END
$$;
