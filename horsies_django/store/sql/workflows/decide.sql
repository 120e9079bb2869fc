-- Decides about one opening of a gate; see functions/workflows/horsies_decide.sql. Returns whether it did.
-- Locks: the row of the run. Index: primary keys.
SELECT horsies_decide(%(workflow)s::uuid, %(number)s::bigint, %(opening)s::int, %(permission)s::text, %(approved)s::boolean, %(by)s::text,
                      %(reason)s::text, %(max_bytes)s::int, %(channel)s::text, %(now)s::timestamptz)
