-- Changes a queue and what depends on it; see functions/caps/horsies_configure_queue.sql.
-- Locks: horsies_limits exclusively, for a moment. Index: primary keys.
SELECT c.changed, c.lost
FROM horsies_configure_queue(%(name)s::text, %(changes)s::jsonb, %(create)s::boolean, %(action)s::text, %(actor)s::text,
                             %(reason)s::text, %(channel)s::text) AS c
