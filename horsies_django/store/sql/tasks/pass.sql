-- Runs the pass of a worker: settle, release, start and claim in one round trip; see
-- functions/claim/horsies_pass.sql.
-- Args: those of the row are described in types/horsies_wanted.sql.
-- Moves: PENDING -> RUNNING, CLAIMED, EXPIRED, CANCELLED; CLAIMED -> RUNNING, EXPIRED, PENDING,
-- CANCELLED; RUNNING -> COMPLETED, FAILED, CANCELLED, PENDING.
-- Locks: advisory locks of caps; task rows, skipping locked ones.
-- Index: horsies_tasks_claim, horsies_tasks_holding and the primary key.
SELECT *
FROM horsies_pass(
  ROW(
    %(worker)s::uuid, %(channel)s::text, %(queues)s::text[], %(news)s::text,
    %(sync)s::int, %(async_)s::int, %(prefetch)s::int, %(total)s::int, %(batch)s::int,
    %(lease)s::interval, %(durable)s::boolean, %(max_crashes)s::int, %(grace)s::interval,
    NULL,  -- taker
    %(cursors)s::jsonb,
    NULL,  -- behind
    %(now)s::timestamptz, %(max_bytes)s::int
  )::horsies_wanted,
  %(outcomes)s::jsonb,
  %(releases)s::jsonb,
  %(starts)s::jsonb,
  %(expired_leases)s::boolean
)
