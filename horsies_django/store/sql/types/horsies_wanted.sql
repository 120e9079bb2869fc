-- Describes what a worker wants of one pass.
CREATE TYPE horsies_wanted AS (
  worker uuid,
  channel text,
  queues text[],  -- those that the worker serves
  news text,  -- the only one of them that may have due tasks; NULL: any
  -- Free slots of each lane.
  sync int,
  async int,
  prefetch int,  -- how many tasks to prefetch, under lease
  -- The most tasks to claim in all, and of each queue (0: no limit).
  total int,
  batch int,
  lease interval,  -- of prefetched tasks; NULL: hard mode
  -- Whether the commit waits for the disk if the pass only claims, starts and parks. It always
  -- waits if the pass expired or returned tasks, because that must not be lost.
  durable boolean,
  max_crashes int,  -- see horsies_retry_decision
  -- The pass leaves tasks to other workers if taker cannot run them and they have been due for less
  -- than this. NULL: it takes everything.
  grace interval,
  taker horsies_workers,  -- the pass sets it
  -- By queue and lane, where its waiting tasks can be, and by queue, when its tasks in flight were
  -- claimed ("held"), as the last pass found them. NULL, or {} for a queue: anywhere.
  cursors jsonb,
  behind timestamptz,  -- the earliest due time of tasks that came back since; the pass sets it
  now timestamptz,  -- replaces the clock in tests, until the pass reads the clock
  -- The most bytes that the arguments of a task of a workflow may have. NULL: no outcome is of a
  -- workflow, or the pass leaves all to horsies_advance.
  max_bytes int
)
