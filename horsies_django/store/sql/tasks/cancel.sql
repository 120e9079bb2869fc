-- Cancels tasks; see functions/settle/horsies_cancel.sql.
-- Moves PENDING, CLAIMED -> CANCELLED. Locks: the task rows. Index: primary key.
SELECT c.id, c.verdict FROM horsies_cancel(%(ids)s::uuid[], %(terminate)s::boolean, %(channel)s::text) AS c
