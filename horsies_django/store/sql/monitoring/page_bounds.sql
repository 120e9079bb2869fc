-- Bound what a page of the admin may cost, until the end of the transaction: slow statements are given up, and indexes are
-- preferred whatever the statistics say. Without seqscan a plan may cost so much on paper that JIT would start: off as well.
-- Locks: none. Index: none.
SELECT set_config('statement_timeout', %(timeout_ms)s::text, true), set_config('enable_seqscan', 'off', true),
       set_config('jit', 'off', true)
