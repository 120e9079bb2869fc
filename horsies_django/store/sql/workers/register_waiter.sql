-- Registers a process that waits for results. Workers announce finished tasks until its row
-- expires. Rows that expired long ago are deleted.
-- Locks: the row of this process, and expired ones, skipping locked ones.
-- Index: primary key (the table has a row per waiting process).
WITH swept AS (
  DELETE FROM horsies_waiters old
  WHERE old.id IN (
    SELECT stale.id
    FROM horsies_waiters stale
    WHERE stale.expires_at < clock_timestamp() - interval '1 hour'
      AND stale.id <> %(waiter)s::uuid
    FOR UPDATE SKIP LOCKED
  )
)
INSERT INTO horsies_waiters (id, expires_at)
VALUES (%(waiter)s::uuid, clock_timestamp() + %(lasting)s::interval)
ON CONFLICT (id) DO UPDATE
SET expires_at = excluded.expires_at
