-- Wakes other workers for tasks that this one has no free slot for; see functions/claim/horsies_pass_on.sql.
-- Locks: none. Index: see the function.
SELECT horsies_pass_on(%(worker)s::uuid, %(channel)s::text, %(lane)s::text, %(queues)s::text[])
