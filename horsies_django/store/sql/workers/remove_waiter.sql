-- A process stops waiting: its row goes.
-- Locks: that row. Index: primary key.
DELETE FROM horsies_waiters waiter WHERE waiter.id = %(waiter)s::uuid
