-- Lists the overrides to end: their time is over, or no worker has served the queue for a while.
-- Args: idle: for how long a queue may be unserved; NULL: for any time.
-- Returns: the name of each queue, and whether the time of its override is over.
SELECT queue.name, coalesce(queue.override_until <= clock_timestamp(), false)
FROM horsies_queues queue
WHERE queue.override IS NOT NULL
  AND (
    queue.override_until <= clock_timestamp()
    OR greatest(queue.served_at, queue.override_at) < clock_timestamp() - %(idle)s::interval
  )
