-- Deletes finished tasks; see functions/tasks/horsies_delete_finished.sql. Returns how many.
-- Locks: the task rows, skipping locked ones. Index: primary keys.
SELECT horsies_delete_finished(%(ids)s::uuid[])
