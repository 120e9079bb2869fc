-- Lists the overrides to end: their time is over, or no worker has served the queue for the given time (NULL: never).
SELECT queue.name, coalesce(queue.override_until <= clock_timestamp(), false)
FROM horsies_queues queue
WHERE queue.override IS NOT NULL
  AND (queue.override_until <= clock_timestamp()
       OR greatest(queue.served_at, queue.override_at) < clock_timestamp() - %(idle)s::interval)
