-- Add the queues that a worker serves and nobody declared yet; never changes one that is there.
-- Locks: none but the new rows. Index: primary key.
INSERT INTO horsies_queues (name, priority)
SELECT declared.name, declared.priority FROM unnest(%(names)s::text[], %(priorities)s::smallint[]) AS declared (name, priority)
ON CONFLICT (name) DO NOTHING
