-- Sets the lock timeout until the end of the transaction and returns the previous one, so that an admin page does not wait for a
-- transaction that was left open.
SELECT current_setting('lock_timeout'), set_config('lock_timeout', %(timeout)s::text, true)
