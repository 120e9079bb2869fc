-- Cancels waiting tasks; see functions/tasks/horsies_purge.sql. Returns how many.
-- Moves PENDING -> CANCELLED. Locks: the task rows, skipping locked ones. Index: primary key.
SELECT horsies_purge(%(ids)s::uuid[], %(channel)s::text)
