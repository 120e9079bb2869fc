-- Deletes a batch of the oldest keys of sends.
-- The digests of unique tasks have no arguments: they stay, and are deleted with their tasks.
-- Locks: the deleted rows, skipping locked ones.
-- Index: horsies_send_keys_sent, primary key.
DELETE FROM horsies_send_keys key
WHERE key.digest = ANY (ARRAY(
  SELECT old.digest
  FROM horsies_send_keys old
  WHERE old.arguments IS NOT NULL
    AND old.sent_at < clock_timestamp() - %(age)s::interval
  ORDER BY old.sent_at
  LIMIT %(many)s::int
  FOR UPDATE SKIP LOCKED
))
