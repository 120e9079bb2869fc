-- Returns about the most bytes that a value can have as text, without reading it. A compressed
-- value may have been much larger, up to 255 times; a small one rarely more than 16 times.
-- The body is one expression, which PostgreSQL puts into the statement that calls it.
CREATE OR REPLACE FUNCTION horsies_most_bytes(p_value json) RETURNS int LANGUAGE sql STABLE AS $$
  SELECT least(pg_column_size(p_value), 8388608) * CASE
    WHEN pg_column_compression(p_value) IS NULL THEN 1
    WHEN pg_column_size(p_value) < 2048 THEN 16
    ELSE 255
  END
$$;
