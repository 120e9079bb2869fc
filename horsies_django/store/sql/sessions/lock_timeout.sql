-- Sets the lock timeout until the end of the transaction, so that an admin page does not wait for a
-- transaction that was left open.
-- Returns: the previous lock timeout, and the new one.
SELECT current_setting('lock_timeout'), set_config('lock_timeout', %(timeout)s::text, true)
