-- The limits of some queues, in the order of their priority, and the cap of the cluster, NULL without one.
-- Locks: none. Index: none.
CREATE TYPE horsies_caps AS (queues horsies_limits[], cluster int)
