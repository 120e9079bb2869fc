-- Read the declared priorities, for the worker's comparison with its own settings.
-- Locks: none. Index: primary key.
SELECT queue.name, queue.priority FROM horsies_queues queue WHERE queue.name = ANY (%(names)s::text[])
