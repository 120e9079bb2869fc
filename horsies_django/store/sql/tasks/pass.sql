-- The pass: settle, release, start and claim in one round trip; see functions/claim/horsies_pass.sql.
-- Moves: PENDING -> RUNNING, CLAIMED, EXPIRED; CLAIMED -> RUNNING, EXPIRED, PENDING; RUNNING -> COMPLETED, FAILED, CANCELLED, PENDING.
-- WHERE is always true: unless the claims shall be durable, it lets the commit not wait for the disk if the pass did nothing but claim,
-- start and park; what it expired or returned must not be lost.
-- Locks: advisory locks of caps; task rows, skipping locked ones. Index: horsies_tasks_claim, horsies_tasks_holding and the primary key.
SELECT p.missed, p.decided::text, p.started, p.returned, p.expired,
       p.verdicts, p.ids, p.generations, p.lanes, p.task_names, p.kwargs, p.attempts, p.options, p.queue_names,
       p.due_in, p.limited, p.again, p.dead, p.firsts::text[], p.held::text, p.looked_at, p.in_runs
FROM horsies_pass(
  ROW(%(worker)s::uuid, %(channel)s::text, %(queues)s::text[], %(sync)s::int, %(async_)s::int, %(prefetch)s::int, %(total)s::int,
      %(batch)s::int, %(lease)s::interval, %(max_crashes)s::int, %(grace)s::interval, NULL, %(cursors)s::jsonb, NULL,
      %(now)s::timestamptz)::horsies_wanted,
  %(outcomes)s::jsonb, %(releases)s::jsonb, %(starts)s::jsonb, %(expired_leases)s::boolean) AS p
WHERE %(durable)s::boolean OR p.expired IS NOT NULL OR p.returned IS NOT NULL OR 'late' = ANY (p.verdicts)
  OR set_config('synchronous_commit', 'off', true) = 'off'
