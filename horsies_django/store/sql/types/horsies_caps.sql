-- The limits of some queues, in the order of their priority, and the cap of the whole cluster, NULL without.
-- Locks: none. Index: none.
CREATE TYPE horsies_caps AS (queues horsies_limits[], cluster int)
