-- Returns why a write did not happen: 'held' (the task is still this claim's and running; if its row was locked, try again), 'waiting'
-- (still this claim's, but not started), 'settled' or 'retried' (an attempt of this worker and generation exists: an earlier try was written), or
-- 'lost' (another claim or nobody holds it now; a reaper's attempt has no process).
SELECT wanted.id,
       CASE WHEN task.claimed_by = %(worker)s::uuid AND task.finished_at IS NULL AND task.claim_generation = wanted.generation
              THEN CASE task.status WHEN 'RUNNING' THEN 'held' ELSE 'waiting' END
            WHEN attempt.outcome <> 'WORKER_FAILURE' OR attempt.child_pid IS NOT NULL
              THEN CASE WHEN attempt.will_retry THEN 'retried' ELSE 'settled' END
            ELSE 'lost' END
FROM unnest(%(ids)s::uuid[], %(generations)s::int[]) AS wanted (id, generation)
LEFT JOIN horsies_tasks task ON task.id = wanted.id
LEFT JOIN horsies_task_attempts attempt ON attempt.task_id = wanted.id AND attempt.claim_generation = wanted.generation
  AND attempt.worker_id = %(worker)s::uuid
