-- Resets a session: settings, role, advisory locks, channels, temporary tables, cursors and plans.
-- It cannot be prepared, and fails inside a transaction.
-- Locks: none; it releases all session-level advisory locks.
DISCARD ALL
