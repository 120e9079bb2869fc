-- Deletes a batch of the oldest rows of the history of one width.
-- Locks: the deleted rows, skipping locked ones. Index: primary key.
WITH old AS MATERIALIZED (
  SELECT history.width, history.at, history.queue, history.task, history.result FROM horsies_history history
  WHERE history.width = %(width)s::int AND history.at < clock_timestamp() - %(age)s::interval
  ORDER BY history.at LIMIT %(many)s::int FOR UPDATE SKIP LOCKED
)
DELETE FROM horsies_history history USING old
WHERE (history.width, history.at, history.queue, history.task, history.result) = (old.width, old.at, old.queue, old.task, old.result)
