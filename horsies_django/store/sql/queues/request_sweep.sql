-- Requests a sweep of the queues with limits per partition, in case a wakeup was lost.
-- Queues whose sweep is requested already stay as they are.
-- Locks: the rows of the queues.
UPDATE horsies_queues queue
SET sweep = '{"stage": "heads"}'
WHERE queue.sweep IS NULL
  AND EXISTS (
    SELECT
    FROM horsies_limits limits
    WHERE limits.queue_name = queue.name
      AND (
        limits.partition_max_concurrency IS NOT NULL
        OR limits.partition_local_limit IS NOT NULL
      )
  )
