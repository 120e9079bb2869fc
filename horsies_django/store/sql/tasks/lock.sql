-- Locks a task until the transaction ends. It is a statement of its own, because one that locks and reads would return what it read before
-- it waited.
-- Locks: the task row; waits for its holder. Index: primary key.
SELECT task.id FROM horsies_tasks task WHERE task.id = %(id)s::uuid FOR NO KEY UPDATE
