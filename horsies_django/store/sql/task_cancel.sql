-- Cancel tasks; see functions/horsies_cancel_v1.sql.
-- Moves PENDING, CLAIMED -> CANCELLED. Locks: the task rows. Index: primary key.
SELECT c.id, c.verdict FROM horsies_cancel_v1(%(ids)s::uuid[], %(terminate)s::boolean, %(channel)s::text) AS c
