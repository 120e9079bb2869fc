-- Records that a living worker serves queues.
-- Once a minute is enough for the time when a queue was last served.
-- Locks: the rows of the queues.
UPDATE horsies_queues queue
SET served_at = clock_timestamp()
WHERE queue.name = ANY (%(names)s::text[])
  AND coalesce(queue.served_at < clock_timestamp() - interval '1 minute', true)
