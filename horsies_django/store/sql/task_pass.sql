-- The pass: settle, release and claim in one round trip; see functions/horsies_pass_v1.sql.
-- Moves: PENDING -> RUNNING, EXPIRED; RUNNING -> COMPLETED, FAILED, PENDING. Locks: task rows, never waiting.
-- Index: horsies_tasks_claim and the primary key.
SELECT p.kind, p.id, p.generation, p.lane, p.task_name, p.kwargs, p.seconds
FROM horsies_pass_v1(%(worker)s::uuid, %(channel)s::text, %(outcomes)s::jsonb, %(releases)s::jsonb,
                     %(queues)s::text[], %(priorities)s::int[], %(sync)s::int, %(async)s::int) AS p
