-- Finds out why the write of a worker did not happen, for each of some tasks.
-- Returns: 'held': this claim still holds the task, which is running; if its row was locked, the
-- write can be tried again. 'waiting': this claim still holds it, but it has not started. 'settled'
-- or 'retried': an attempt of this worker and generation exists, so an earlier try was written.
-- 'lost': another claim or none holds the task now. An attempt that the reaper wrote has no
-- process, and does not count.
SELECT
  wanted.id,
  CASE
    WHEN task.claimed_by = %(worker)s::uuid
      AND task.finished_at IS NULL
      AND task.claim_generation = wanted.generation
      THEN CASE task.status WHEN 'RUNNING' THEN 'held' ELSE 'waiting' END
    WHEN attempt.outcome <> 'WORKER_FAILURE' OR attempt.child_pid IS NOT NULL
      THEN CASE WHEN attempt.will_retry THEN 'retried' ELSE 'settled' END
    ELSE 'lost'
  END
FROM unnest(%(ids)s::uuid[], %(generations)s::int[]) AS wanted (id, generation)
LEFT JOIN horsies_tasks task ON task.id = wanted.id
LEFT JOIN horsies_task_attempts attempt
  ON attempt.task_id = wanted.id
  AND attempt.claim_generation = wanted.generation
  AND attempt.worker_id = %(worker)s::uuid
