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
        'hostname', w.hostname,
        'pid', w.pid,
        'child_pid', child.pid,
        'since', coalesce(held.started_at, held.claimed_at)
      )
      ORDER BY held.claimed_at, held.id
    ),
    '[]'
  )
  FROM (
    SELECT t.id, t.task_name, t.claimed_by, t.claimed_at, t.started_at
    FROM horsies_tasks t
    WHERE (t.queue_name = p_limits.queue_name OR p_limits.queue_name = '*')
      AND t.claimed_by IS NOT NULL
      AND t.finished_at IS NULL
      AND horsies_holds_permit(t.status, t.claim_expires_at, p_claimed, p_now)
      AND (
        p_key IS NULL
        OR horsies_partition_key(
          p_limits.partition_by_args, p_limits.partition_by_task, t.kwargs, t.task_name, t.codec
        ) = p_key
      )
    ORDER BY t.claimed_at, t.id
    LIMIT p_many
  ) AS held
  LEFT JOIN horsies_workers w ON w.id = held.claimed_by
  LEFT JOIN LATERAL (
    SELECT b.pid
    FROM horsies_heartbeats b
    WHERE b.worker_id = held.claimed_by AND b.role = 'runner' AND b.holding ? held.id::text
    ORDER BY b.sent_at DESC
    LIMIT 1
  ) AS child ON true
$$;
