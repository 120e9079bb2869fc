-- Bound how long each further statement of this transaction waits for a lock, and tell the bound before: a page that waited for
-- somebody's open transaction would look as if it hung.
-- Locks: none. Index: none.
SELECT current_setting('lock_timeout'), set_config('lock_timeout', %(timeout)s::text, true)
