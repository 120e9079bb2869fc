-- Deletes the row of a process that no longer waits for results.
-- Locks: that row.
DELETE FROM horsies_waiters waiter
WHERE waiter.id = %(waiter)s::uuid
