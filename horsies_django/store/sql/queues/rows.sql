-- Reads the declared limits of queues, which a worker compares with its own settings.
SELECT
  queue.name,
  queue.priority,
  queue.max_concurrency,
  queue.local_limit,
  queue.partition_by_args,
  queue.partition_by_task,
  queue.partition_max_concurrency,
  queue.partition_local_limit,
  queue.partition_policy
FROM horsies_queues queue
WHERE queue.name = ANY (%(names)s::text[])
