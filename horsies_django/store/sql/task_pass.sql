-- The pass: settle, release, start and claim in one round trip; see functions/horsies_pass.sql.
-- Moves: PENDING -> RUNNING, CLAIMED, EXPIRED; CLAIMED -> RUNNING, EXPIRED, PENDING; RUNNING -> COMPLETED, FAILED, CANCELLED, PENDING.
-- Locks: advisory locks of caps; task rows, never waiting. Index: horsies_tasks_claim, horsies_tasks_holding and the primary key.
SELECT p.kind, p.id, p.generation, p.lane, p.task_name, p.kwargs, p.attempt, p.options, p.number, p.queue_name
FROM horsies_pass(%(worker)s::uuid, %(channel)s::text, %(outcomes)s::jsonb, %(releases)s::jsonb, %(starts)s::jsonb,
                  %(queues)s::text[], %(sync)s::int, %(async_)s::int, %(buffer)s::int, %(total)s::int, %(batch)s::int,
                  %(lease)s::interval, %(sweep)s::boolean, %(max_crashes)s::int, %(grace)s::interval,
                  %(marks)s::jsonb, %(now)s::timestamptz) AS p
