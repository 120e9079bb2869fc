-- Reads the declared limits of queues, which a worker compares with its own settings.
-- Returns: the name of each queue, and its row as JSON.
SELECT queue.name, to_jsonb(queue)::text
FROM horsies_queues queue
WHERE queue.name = ANY (%(names)s::text[])
