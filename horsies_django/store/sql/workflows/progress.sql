-- Counts how far runs are; a map counts as its tasks once their number is known, else as one.
-- Locks: none. Index: primary key.
SELECT n.workflow_id, sum(coalesce(n.total, 1))::int,
       sum(CASE WHEN n.total IS NOT NULL THEN n.items_ok WHEN n.status = 'COMPLETED' THEN 1 ELSE 0 END)::int AS completed,
       sum(CASE WHEN n.total IS NOT NULL THEN CASE WHEN n.finished_at IS NULL THEN n.items_bad ELSE n.total - n.items_ok END
                WHEN n.status IN ('FAILED', 'CANCELLED', 'EXPIRED') THEN 1 ELSE 0 END)::int AS failed,
       sum(CASE WHEN n.total IS NULL AND n.status = 'SKIPPED' THEN 1 ELSE 0 END)::int AS skipped,
       sum(CASE WHEN n.finished_at IS NOT NULL THEN 0 WHEN n.total IS NULL THEN 1 ELSE n.total - n.items_ok - n.items_bad END)::int AS open
FROM horsies_workflow_nodes n WHERE n.workflow_id = ANY (%(ids)s::uuid[]) GROUP BY n.workflow_id
