-- Returns the time by the clock of the database in microseconds since 1970: a number, because the
-- format of timestamps depends on settings.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
