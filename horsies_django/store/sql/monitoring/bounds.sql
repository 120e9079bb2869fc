-- Bound what each further statement of this session may take: who asks how the database does must hear when it does not answer.
-- Locks: none. Index: none.
SELECT set_config('statement_timeout', %(timeout_ms)s::text, false)
