-- Describes a task that a pass may claim or start, whose row it has locked.
CREATE TYPE horsies_candidate AS (
  id uuid,
  queue int,  -- the index of its queue in the limits of the pass
  lane text,
  priority smallint,
  enqueued_at timestamptz,
  key text,  -- its partition under the rule in force
  stale boolean,  -- its row has the key of an older rule
  late boolean,  -- it is past its good_until
  verdict text  -- see horsies_allot
)
