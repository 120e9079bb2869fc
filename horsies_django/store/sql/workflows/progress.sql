-- Counts how far runs are.
-- A map counts as its tasks once their number is available, else as one. An element that was
-- skipped, or passed over because the one before it was, counts as completed. The elements of a map
-- that was ended before it had sent them count as failed.
-- Returns: for each run the numbers of all, completed, failed, skipped and open ones.
SELECT
  c.workflow_id,
  sum(c.many)::int,
  sum(c.many - c.failed - c.skipped - c.open)::int AS completed,
  sum(c.failed)::int,
  sum(c.skipped)::int,
  sum(c.open)::int
FROM (
  SELECT
    n.workflow_id,
    coalesce(n.total, 1) AS many,
    CASE WHEN n.status = 'SKIPPED' THEN coalesce(n.total, 1) ELSE 0 END AS skipped,
    CASE
      WHEN n.finished_at IS NULL THEN n.items_bad
      WHEN n.status IN ('COMPLETED', 'SKIPPED') THEN 0
      WHEN n.total IS NULL THEN 1
      WHEN n.expanded < n.total THEN n.total - n.items_ok
      ELSE n.items_bad + n.in_flight
    END AS failed,
    CASE
      WHEN n.finished_at IS NOT NULL THEN 0
      WHEN n.total IS NULL THEN 1
      ELSE least(n.total - n.items_ok - n.items_bad, n.total - n.expanded + n.in_flight)
    END AS open
  FROM horsies_workflow_nodes n
  WHERE n.workflow_id = ANY (%(ids)s::uuid[])
) AS c
GROUP BY c.workflow_id
