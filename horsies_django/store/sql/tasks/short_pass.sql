-- The short pass: settle and claim in one statement; see functions/claim/horsies_short_pass.sql.
-- Moves: PENDING -> RUNNING; RUNNING -> COMPLETED, CANCELLED.
-- WHERE is always true: unless the claims shall be durable, it lets the commit not wait for the disk.
-- Locks: task rows, skipping locked ones. Index: horsies_tasks_claim and the primary key.
SELECT p.fit, p.again, p.missed, p.in_runs, p.ids, p.generations, p.lanes, p.task_names, p.kwargs, p.attempts, p.options, p.queue_names
FROM horsies_short_pass(%(worker)s::uuid, %(channel)s::text, %(outcomes)s::jsonb, %(queues)s::text[], %(queue)s::text,
                        %(sync)s::int, %(async_)s::int) AS p
WHERE %(durable)s::boolean OR set_config('synchronous_commit', 'off', true) = 'off'
