-- Note that a living worker serves some queues: once a minute is enough to know when a queue was left alone.
-- Locks: the queues' rows. Index: primary key.
UPDATE horsies_queues queue SET served_at = clock_timestamp()
WHERE queue.name = ANY (%(names)s::text[]) AND coalesce(queue.served_at < clock_timestamp() - interval '1 minute', true)
