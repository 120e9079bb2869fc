-- Returns whether a task of some queues and a lane is due and waits; see functions/claim/horsies_count_due.sql.
-- Locks: none. Index: see the function.
SELECT horsies_count_due(%(lane)s::text, %(queues)s::text[], 1) > 0
