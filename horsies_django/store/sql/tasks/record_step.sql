-- Records a step of a running task, unless its claim has ended: then no row is written. Until the transaction ends, the task stays locked,
-- so that nobody gives it to another worker before the step is committed.
-- Locks: the task's row; waits for its holder. Index: primary key.
WITH held AS (
  SELECT task.id FROM horsies_tasks task
  WHERE task.id = %(task)s::uuid AND task.claimed_by = %(worker)s::uuid AND task.claim_generation = %(generation)s::int
    AND task.status = 'RUNNING'
  FOR NO KEY UPDATE
)
INSERT INTO horsies_task_steps (task_id, name, digest, result)
SELECT held.id, %(name)s::text, %(digest)s::text, %(result)s::jsonb FROM held
