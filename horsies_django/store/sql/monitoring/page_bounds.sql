-- Bounds the cost of an admin page until the end of the transaction: sets a statement timeout, and
-- prefers indexes whatever the statistics are.
-- Without seqscan, plans can seem so expensive that JIT starts, so JIT is off as well.
SELECT
  set_config('statement_timeout', %(timeout_ms)s::text, true),
  set_config('enable_seqscan', 'off', true),
  set_config('jit', 'off', true)
