-- Returns the living workers that could take a task, or only the worker that has claimed it.
-- Returns: an array of JSON objects with the keys
--   worker_id, hostname, pid, beat_at: the worker, and its last heartbeat.
--   slots: the slots of the task's lane in the processes that are ready.
--   busy: the running tasks of the lane. It counts rows, which are newer than the last heartbeat.
--   room: the room under the queue's limit per worker, NULL without one.
--   partition_room: the room of the partition on the worker, NULL without a partition.
--   wire: the latest version of the format that the worker reads.
--   knows: whether it can run the task.
-- Index: horsies_tasks_holding, primary keys.
CREATE OR REPLACE FUNCTION horsies_eligible_workers(
  p_task horsies_tasks, p_limits horsies_limits, p_key text, p_claimed boolean, p_now timestamptz,
  p_threshold interval
) RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_local horsies_limits := p_limits;
BEGIN
  v_local.max_concurrency := NULL;

  RETURN (
    WITH busy AS MATERIALIZED (
      SELECT task.claimed_by AS worker, count(*) AS many
      FROM horsies_tasks task
      WHERE task.claimed_by IS NOT NULL
        AND task.finished_at IS NULL
        AND task.lane = p_task.lane
        AND horsies_holds_permit(task.status, task.claim_expires_at, false, p_now)
      GROUP BY task.claimed_by
    )
    SELECT coalesce(
      jsonb_agg(
        jsonb_build_object(
          'worker_id', living_worker.id,
          'hostname', living_worker.hostname,
          'pid', living_worker.pid,
          'beat_at', heartbeat.sent_at,
          'slots', horsies_ready_processes(living_worker)
            * CASE p_task.lane
              WHEN 'sync' THEN living_worker.threads
              ELSE living_worker.async_concurrency
            END,
          'busy', coalesce(busy.many, 0),
          'room', (
            horsies_remaining_capacity(ARRAY[v_local], living_worker.id, p_claimed, p_now, NULL)
          ).rooms[1],
          'partition_room', CASE
            WHEN p_key IS NOT NULL THEN (
              SELECT partition_room.room
              FROM horsies_partition_rooms(
                p_limits, ARRAY[p_key], living_worker.id, p_claimed, p_now
              ) AS partition_room
            )
          END,
          'wire', coalesce(living_worker.wire, 1),
          'knows', horsies_worker_knows(p_task.task_name, p_task.options, living_worker)
        )
        ORDER BY living_worker.started_at, living_worker.id
      ),
      '[]'
    )
    FROM horsies_workers living_worker
    JOIN horsies_heartbeats heartbeat ON heartbeat.id = living_worker.id
    LEFT JOIN busy ON busy.worker = living_worker.id
    WHERE living_worker.id IN (SELECT horsies_living_workers(p_task.queue_name, p_threshold))
      AND (p_task.claimed_by IS NULL OR living_worker.id = p_task.claimed_by)
  );
END
$$;
