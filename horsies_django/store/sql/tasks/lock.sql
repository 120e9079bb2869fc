-- Lock a task, so that what is read about it next is so until the transaction ends. A statement of its own: one that locked and read
-- would read what there was before it waited.
-- Locks: the task row; waits for whoever has it. Index: primary key.
SELECT task.id FROM horsies_tasks task WHERE task.id = %(id)s::uuid FOR NO KEY UPDATE
