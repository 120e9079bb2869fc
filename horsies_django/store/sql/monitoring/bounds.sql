-- Sets the statement timeout of this session, so that health reports fail soon when the database does not answer.
-- Locks: none. Index: none.
SELECT set_config('statement_timeout', %(timeout_ms)s::text, false)
