-- What time it is by the database's clock, in microseconds since 1970: a number, because how a moment is written depends on settings.
-- Locks: none. Index: none.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
