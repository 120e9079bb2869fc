-- What a worker asks of one pass. queues: those that it serves. news: the only one of them that may have due tasks, NULL for any. sync,
-- async: free slots. prefetch: how many tasks to prefetch, under lease (NULL: hard mode). total, batch: the most to claim in all, and of
-- each queue (0: no limit). durable: whether the commit waits for the disk if the pass only claims, starts and parks; what it expired or
-- returned must not be lost. max_crashes: see horsies_retry_decision.
-- grace: leave tasks to others that taker cannot run and that have been due for less than this; NULL: take everything. The pass sets taker.
-- cursors: by queue and lane where its waiting tasks can be, and by queue when its tasks in flight were claimed ("held"), as the last pass
-- found them; NULL, or {} for a queue: anywhere. behind: the earliest due time of tasks that came back since; the pass sets it. now:
-- replaces the clock in tests, until the pass reads the clock. max_bytes: of the arguments of a task of a workflow; NULL: no outcome is
-- of a workflow, or the pass leaves all to horsies_advance.
CREATE TYPE horsies_wanted AS (
  worker uuid, channel text, queues text[], news text, sync int, async int, prefetch int, total int, batch int, lease interval,
  durable boolean, max_crashes int, grace interval, taker horsies_workers, cursors jsonb, behind timestamptz, now timestamptz, max_bytes int)
