-- Lists the names of the recorded steps of a task.
SELECT step.name
FROM horsies_task_steps step
WHERE step.task_id = %(task)s::uuid
