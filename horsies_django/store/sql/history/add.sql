-- Adds the counts of a worker to the rows of one minute and one hour. These are the minute and the
-- hour ("at") in which the middle of the time that the counts cover lies.
-- It adds nothing if the row of the worker has this number or a higher one already, or if the
-- worker was deleted. So counts that are sent again after a lost reply are added once.
-- Args: number: of this addition of the worker; covers: the time that the counts cover.
-- Locks: the row of the worker; the rows of the history, in the order of their key.
WITH counted AS (
  UPDATE horsies_workers worker
  SET counted = %(number)s::int
  WHERE worker.id = %(worker)s::uuid AND worker.counted < %(number)s::int
  RETURNING clock_timestamp() - %(covers)s::interval / 2 AS middle
), new AS (
  SELECT
    span.width,
    to_timestamp(floor(extract(epoch FROM counted.middle) / span.width) * span.width) AS at,
    row.*
  FROM counted
  CROSS JOIN (VALUES (60), (3600)) AS span (width)
  CROSS JOIN jsonb_to_recordset(%(rows)s::jsonb) AS row (
    queue text, task text, result text, n int, seconds float8, longest float8, buckets int[]
  )
)
INSERT INTO horsies_history AS kept (
  width, at, queue, task, result, n, seconds, longest, buckets
)
SELECT
  new.width, new.at, new.queue, new.task, new.result,
  new.n, new.seconds, new.longest, new.buckets
FROM new
ORDER BY new.width, new.at, new.queue, new.task, new.result
ON CONFLICT (width, at, queue, task, result) DO UPDATE
SET
  n = kept.n + excluded.n,
  seconds = kept.seconds + excluded.seconds,
  longest = greatest(kept.longest, excluded.longest),
  buckets = ARRAY(
    SELECT bucket.kept + bucket.new
    FROM unnest(kept.buckets, excluded.buckets) AS bucket (kept, new)
  )
