-- Returns the tasks that hold permits of a queue ('*': of any queue), the oldest claim first,
-- p_many at most.
-- Args: p_key is a partition under the rule in force, the only one whose tasks are returned; NULL
-- for all tasks.
-- Returns: an array of JSON objects with the keys task_id, task_name, worker_id, hostname, pid,
-- child_pid and since.
-- Index: horsies_tasks_holding, horsies_heartbeats_worker, primary keys.
CREATE OR REPLACE FUNCTION horsies_permit_holders(
  p_limits horsies_limits, p_key text, p_claimed boolean, p_now timestamptz, p_many int
) RETURNS jsonb LANGUAGE sql VOLATILE AS $$
  SELECT coalesce(
    jsonb_agg(
      jsonb_build_object(
        'task_id', held.id,
        'task_name', held.task_name,
        'worker_id', held.claimed_by,
        'hostname', worker.hostname,
        'pid', worker.pid,
        'child_pid', child.pid,
        'since', coalesce(held.started_at, held.claimed_at)
      )
      ORDER BY held.claimed_at, held.id
    ),
    '[]'
  )
  FROM (
    SELECT task.id, task.task_name, task.claimed_by, task.claimed_at, task.started_at
    FROM horsies_tasks task
    WHERE (task.queue_name = p_limits.queue_name OR p_limits.queue_name = '*')
      AND task.claimed_by IS NOT NULL
      AND task.finished_at IS NULL
      AND horsies_holds_permit(task.status, task.claim_expires_at, p_claimed, p_now)
      AND (
        p_key IS NULL
        OR horsies_partition_key(
          p_limits.partition_by_args, p_limits.partition_by_task,
          task.kwargs, task.task_name, task.codec
        ) = p_key
      )
    ORDER BY task.claimed_at, task.id
    LIMIT p_many
  ) AS held
  LEFT JOIN horsies_workers worker ON worker.id = held.claimed_by
  LEFT JOIN LATERAL (
    SELECT heartbeat.pid
    FROM horsies_heartbeats heartbeat
    WHERE heartbeat.worker_id = held.claimed_by
      AND heartbeat.role = 'runner'
      AND heartbeat.holding ? held.id::text
    ORDER BY heartbeat.sent_at DESC
    LIMIT 1
  ) AS child ON true
$$;
