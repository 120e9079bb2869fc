-- Returns the sums of the history of one width by queue, task and result, over the rows that began in the last span.
-- Locks: none. Index: primary key.
SELECT total.queue, total.task, total.result, sum(total.n)::bigint, sum(total.seconds)::float8, ARRAY[
  sum(buckets[1]), sum(buckets[2]), sum(buckets[3]), sum(buckets[4]), sum(buckets[5]), sum(buckets[6]), sum(buckets[7]), sum(buckets[8]),
  sum(buckets[9]), sum(buckets[10]), sum(buckets[11]), sum(buckets[12]), sum(buckets[13]), sum(buckets[14]), sum(buckets[15]), sum(buckets[16])]
FROM horsies_history total
WHERE total.width = %(width)s::int AND total.at > statement_timestamp() - %(span)s::interval
GROUP BY total.queue, total.task, total.result
