-- Returns a UUID of version 7 for a row that the database creates. It ascends with time, to the
-- microsecond; rows of one statement keep the order of p_place. The time is one number of 15
-- hexadecimal digits: 12 for the millisecond, 3 for its 4,096th parts.
CREATE OR REPLACE FUNCTION horsies_uuid7(p_place int) RETURNS uuid LANGUAGE sql VOLATILE AS $$
  SELECT (
    overlay(
      lpad(to_hex(floor(extract(epoch FROM clock_timestamp()) * 4096000)::bigint), 15, '0')
      PLACING '7' FROM 13 FOR 0)
    || '8'
    || lpad(to_hex(p_place & 16777215), 6, '0')
    || right(gen_random_uuid()::text, 9)
  )::uuid
$$;
