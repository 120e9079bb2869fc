-- Counts the workflow runs that have not finished by status, the oldest p_bound of them.
-- Index: horsies_workflows_unfinished, in its order.
CREATE OR REPLACE FUNCTION horsies_count_runs(p_bound int) RETURNS TABLE (status text, many int)
LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
  SELECT run.status::text, count(*)::int
  FROM (
    SELECT r.status
    FROM horsies_workflows r
    WHERE r.finished_at IS NULL
    ORDER BY r.sent_at
    LIMIT p_bound
  ) AS run
  GROUP BY run.status
$$;
