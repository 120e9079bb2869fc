-- The short pass: settle and claim in one statement; see functions/horsies_short_pass.sql.
-- Moves: PENDING -> RUNNING; RUNNING -> COMPLETED, CANCELLED.
-- Locks: task rows, never waiting. Index: horsies_tasks_claim and the primary key.
SELECT p.kind, p.id, p.generation, p.lane, p.task_name, p.kwargs, p.attempt, p.options, p.queue_name
FROM horsies_short_pass(%(worker)s::uuid, %(channel)s::text, %(outcomes)s::jsonb, %(queues)s::text[], %(queue)s::text,
                        %(sync)s::int, %(async_)s::int) AS p
