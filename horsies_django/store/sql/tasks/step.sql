-- Reads a recorded step of a task: the digest of its arguments and its result.
SELECT step.digest, step.result::text
FROM horsies_task_steps step
WHERE step.task_id = %(task)s::uuid AND step.name = %(name)s::text
