-- Forget everything that a session may have changed: settings, role, advisory locks, channels, temporary tables, cursors, plans.
-- Not a statement that can be prepared, and refused inside a transaction.
-- Locks: none, and it lets go of all session-level advisory locks. Index: none.
DISCARD ALL
