-- Sums the history of one width by queue, task and result, over the rows that began in the last
-- p_span.
-- Args: p_but are the results to leave out.
-- Index: the primary key of horsies_history; without parallel workers, whose start takes longer
-- than the sums.
CREATE OR REPLACE FUNCTION horsies_totals(p_width int, p_span interval, p_but text[])
RETURNS TABLE (
  queue text, task text, result text, n bigint, seconds float8, buckets bigint[]
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET max_parallel_workers_per_gather = 0
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN QUERY
  SELECT
    total.queue::text,
    total.task::text,
    total.result::text,
    sum(total.n)::bigint,
    sum(total.seconds)::float8,
    ARRAY[
      sum(total.buckets[1]), sum(total.buckets[2]),
      sum(total.buckets[3]), sum(total.buckets[4]),
      sum(total.buckets[5]), sum(total.buckets[6]),
      sum(total.buckets[7]), sum(total.buckets[8]),
      sum(total.buckets[9]), sum(total.buckets[10]),
      sum(total.buckets[11]), sum(total.buckets[12]),
      sum(total.buckets[13]), sum(total.buckets[14]),
      sum(total.buckets[15]), sum(total.buckets[16])
    ]
  FROM horsies_history total
  WHERE total.width = p_width
    AND total.at > statement_timestamp() - p_span
    AND total.result <> ALL (p_but)
  GROUP BY total.queue, total.task, total.result;
END
$$;
