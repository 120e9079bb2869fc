-- Renews the leases of prefetched tasks, each under its own claim generation. No index is changed.
-- Locks: the rows of the tasks, skipping locked ones.
UPDATE horsies_tasks task
SET claim_expires_at = clock_timestamp() + %(lease)s::interval
FROM jsonb_to_recordset(%(claims)s::jsonb) AS claim (id uuid, generation int)
WHERE task.id = claim.id
  AND task.claimed_by = %(worker)s::uuid
  AND task.claim_generation = claim.generation
  AND task.status = 'CLAIMED'
  AND task.id = ANY (ARRAY(
    SELECT held.id
    FROM horsies_tasks held
    WHERE held.id = ANY (ARRAY(
      SELECT c.id FROM jsonb_to_recordset(%(claims)s::jsonb) AS c (id uuid)
    ))
    FOR NO KEY UPDATE SKIP LOCKED
  ))
