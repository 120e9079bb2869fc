-- Returns a UUID of version 7 for a task that the database creates. Rows of one statement keep the order of p_place.
-- Locks: none. Index: none.
CREATE FUNCTION horsies_uuid7(p_place int) RETURNS uuid LANGUAGE sql VOLATILE AS $$
  SELECT (lpad(to_hex(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
          || '7' || lpad(to_hex(p_place >> 12 & 4095), 3, '0') || '8' || lpad(to_hex(p_place & 4095), 3, '0')
          || right(gen_random_uuid()::text, 12))::uuid
$$;
