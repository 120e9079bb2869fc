-- A task that a pass may claim or start, whose row it has locked. queue: the index of its queue in the limits of the pass. key: its partition
-- under the rule in force; stale: its row has the key of an older rule. late: it is past its good_until. verdict: see horsies_allot.
CREATE TYPE horsies_candidate AS (
  id uuid, queue int, lane text, priority smallint, enqueued_at timestamptz, key text, stale boolean, late boolean, verdict text)
