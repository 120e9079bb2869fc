-- Records that a snapshot of a worker was lost; see functions/audit/horsies_lost.sql.
-- Locks: an advisory lock, without waiting; the row. Index: primary key.
SELECT horsies_lost('snapshot', %(what)s::text, %(error)s::text)
