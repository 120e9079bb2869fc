-- Lists the tasks that hold permits of a queue ('*': of any queue), the oldest claim first.
-- The partition of a task is that of the rule in force.
-- Args: threshold: see horsies_worker_phase.
-- Returns: each task with its worker, the process that runs it, and whether the worker is alive.
-- Index: horsies_tasks_holding, primary keys, horsies_heartbeats_worker.
SELECT
  task.id,
  task.task_name,
  task.status,
  horsies_partition_key(
    queue.partition_by_args, queue.partition_by_task, task.kwargs, task.task_name, task.codec
  ),
  task.claimed_by,
  worker.hostname,
  child.pid,
  horsies_known_time(coalesce(task.started_at, task.claimed_at)),
  coalesce(
    horsies_worker_phase(
      worker.stopping_at, worker.stopped_at, parent.sent_at, parent.died_at,
      %(threshold)s::interval
    ) IN ('living', 'stopping'),
    false
  )
FROM (SELECT clock_timestamp() AS now OFFSET 0) AS moment
CROSS JOIN LATERAL horsies_tasks_holding_permits(
  %(queue)s::text, %(many)s::int, moment.now
) AS task
LEFT JOIN horsies_queues queue ON queue.name = task.queue_name
LEFT JOIN horsies_workers worker ON worker.id = task.claimed_by
LEFT JOIN horsies_heartbeats parent ON parent.id = task.claimed_by
LEFT JOIN LATERAL (
  SELECT beat.pid
  FROM horsies_heartbeats beat
  WHERE beat.worker_id = task.claimed_by
    AND beat.role = 'runner'
    AND beat.holding ? task.id::text
  ORDER BY beat.sent_at DESC
  LIMIT 1
) AS child ON true
ORDER BY task.claimed_at, task.id
