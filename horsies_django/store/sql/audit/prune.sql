-- Deletes a batch of the oldest audit entries, except those to which rows of other tables refer.
-- Ids ascend with time, so only the first entries of the primary key are read.
-- Locks: the entries of the batch, skipping locked ones.
-- Index: primary key.
WITH old AS MATERIALIZED (
  SELECT first.id
  FROM (
    SELECT kept.id, kept.at
    FROM horsies_audit kept
    ORDER BY kept.id
    LIMIT %(many)s::int
  ) AS first
  WHERE first.at < clock_timestamp() - %(age)s::interval
), held AS MATERIALIZED (
  SELECT kept.id
  FROM horsies_audit kept
  WHERE kept.id = ANY (ARRAY(SELECT old.id FROM old))
  FOR UPDATE SKIP LOCKED
)
DELETE FROM horsies_audit kept
WHERE kept.id = ANY (ARRAY(SELECT held.id FROM held))
  AND kept.id <> ALL (ARRAY(
    SELECT unnest(horsies_referenced('horsies_audit', ARRAY(SELECT held.id FROM held)))
  ))
