-- Sums the history of one width over the last p_span, in equal steps.
-- Args:
--   p_steps: the number of steps; the last one (p_steps - 1) ends with the present minute or hour.
--   p_completed: the results of the kind "completed".
--   p_no_failure: the results that are no failures; except for the completed, their kind is
--     "other".
-- Returns: for each queue, step and kind (claimed, completed, failed or other) the sums; longest is
-- the longest duration, NULL if none is known.
CREATE OR REPLACE FUNCTION horsies_series(
  p_width int, p_span interval, p_steps int, p_completed text[], p_no_failure text[]
) RETURNS TABLE (
  queue text, step int, kind text, n bigint, longest float8, buckets bigint[]
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET max_parallel_workers_per_gather = 0
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_last timestamptz := to_timestamp(
    floor(extract(epoch FROM statement_timestamp()) / p_width) * p_width
  );
  v_seconds float8 := extract(epoch FROM p_span);
BEGIN
  RETURN QUERY
  SELECT
    row.queue,
    row.step,
    row.kind,
    sum(row.n)::bigint,
    max(row.longest),
    ARRAY[
      sum(row.b[1]), sum(row.b[2]), sum(row.b[3]), sum(row.b[4]),
      sum(row.b[5]), sum(row.b[6]), sum(row.b[7]), sum(row.b[8]),
      sum(row.b[9]), sum(row.b[10]), sum(row.b[11]), sum(row.b[12]),
      sum(row.b[13]), sum(row.b[14]), sum(row.b[15]), sum(row.b[16])
    ]
  FROM (
    SELECT
      history.queue::text,
      history.n,
      history.longest,
      history.buckets AS b,
      p_steps - 1 - greatest(
        0,
        floor(extract(epoch FROM v_last - history.at)::float8 * p_steps / v_seconds)
      )::int AS step,
      CASE
        WHEN history.result = 'CLAIMED' THEN 'claimed'
        WHEN history.result = ANY (p_completed) THEN 'completed'
        WHEN history.result = ANY (p_no_failure) THEN 'other'
        ELSE 'failed'
      END AS kind
    FROM horsies_history history
    WHERE history.width = p_width AND history.at > v_last - p_span
    OFFSET 0  -- each row's step and kind are computed once
  ) AS row
  GROUP BY row.queue, row.step, row.kind;
END
$$;
