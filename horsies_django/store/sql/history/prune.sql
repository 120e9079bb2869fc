-- Deletes a batch of the oldest rows of the history that have one width.
-- Locks: the deleted rows, skipping locked ones.
DELETE FROM horsies_history history
WHERE history.ctid = ANY (ARRAY(
  SELECT old.ctid
  FROM horsies_history old
  WHERE old.width = %(width)s::int
    AND old.at < statement_timestamp() - %(age)s::interval
  ORDER BY old.at
  LIMIT %(many)s::int
  FOR UPDATE SKIP LOCKED
))
