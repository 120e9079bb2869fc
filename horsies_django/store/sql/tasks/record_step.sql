-- Records a step of a running task; see functions/tasks/horsies_record_step.sql. Returns false if its claim has ended.
-- Locks: the task's row; waits for its holder. Index: primary keys.
SELECT horsies_record_step(
  %(task)s::uuid, %(worker)s::uuid, %(generation)s::int, %(name)s::text, %(digest)s::text, %(result)s::jsonb)
