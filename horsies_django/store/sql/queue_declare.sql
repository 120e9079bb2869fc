-- Write the queues that the settings declare; a changed priority is updated, an unchanged row is left alone.
-- Locks: the changed queue rows. Index: primary key.
INSERT INTO horsies_queues AS queue (name, priority)
SELECT declared.name, declared.priority FROM unnest(%(names)s::text[], %(priorities)s::smallint[]) AS declared (name, priority)
ON CONFLICT (name) DO UPDATE SET priority = excluded.priority, updated_at = clock_timestamp()
WHERE queue.priority IS DISTINCT FROM excluded.priority
