-- Returns a number for a node that a running task adds; see functions/workflows/horsies_new_number.sql.
-- Locks: none. Index: primary key.
SELECT horsies_new_number(%(workflow)s::uuid)
