-- Deletes a batch of the oldest snapshots of workers, except those to which rows of other tables
-- refer. Ids ascend with time, so only the first entries of the primary key are read.
-- Locks: the snapshots of the batch, skipping locked ones.
-- Index: primary key.
WITH old AS MATERIALIZED (
  SELECT first.id
  FROM (
    SELECT kept.id, kept.snapshot_at
    FROM horsies_worker_states kept
    ORDER BY kept.id
    LIMIT %(many)s::int
  ) AS first
  WHERE first.snapshot_at < clock_timestamp() - %(age)s::interval
), held AS MATERIALIZED (
  SELECT kept.id
  FROM horsies_worker_states kept
  WHERE kept.id = ANY (ARRAY(SELECT old.id FROM old))
  FOR UPDATE SKIP LOCKED
)
DELETE FROM horsies_worker_states kept
WHERE kept.id = ANY (ARRAY(SELECT held.id FROM held))
  AND kept.id <> ALL (ARRAY(
    SELECT unnest(horsies_referenced('horsies_worker_states', ARRAY(SELECT held.id FROM held)))
  ))
