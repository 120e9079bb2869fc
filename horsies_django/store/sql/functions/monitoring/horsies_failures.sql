-- Returns which tasks failed for good in the last p_span and with which code, the most frequent first, by the history of one width.
-- Locks: none. Index: the primary key of horsies_history.
CREATE OR REPLACE FUNCTION horsies_failures(p_width int, p_span interval, p_no_failure text[], p_many int)
RETURNS TABLE (task text, code text, n bigint) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET max_parallel_workers_per_gather = 0
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN QUERY
  SELECT history.task::text, history.result::text, sum(history.n)::bigint
  FROM horsies_history history
  WHERE history.width = p_width AND history.at > statement_timestamp() - p_span AND history.result <> ALL (p_no_failure)
  GROUP BY history.task, history.result ORDER BY 3 DESC, 1, 2 LIMIT p_many;
END
$$;
