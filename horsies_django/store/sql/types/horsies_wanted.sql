-- What a worker wants of one pass. sync, async: free slots; prefetch: places for tasks taken ahead, under a lease (NULL: hard mode); total, batch:
-- the most that is claimed in all, and of each queue (0: no limit). max_crashes: see horsies_retry_decision.
-- grace: leave out what taker cannot run while it has been due for less than that; NULL: take everything. The pass fills in taker.
-- cursors: for each queue and lane where its waiting tasks can be, as the last pass left it, and when its tasks in flight were claimed
-- ("held"), so that scans begin behind what is dead and cannot be vacuumed; NULL, and {} for a queue: anywhere. behind: what came back
-- since then, the pass fills it in. now stands in for the clock, in tests, until the pass reads the clock.
-- Locks: none. Index: none.
CREATE TYPE horsies_wanted AS (
  worker uuid, channel text, queues text[], sync int, async int, prefetch int, total int, batch int, lease interval, max_crashes int,
  grace interval, taker horsies_workers, cursors jsonb, behind timestamptz, now timestamptz)
