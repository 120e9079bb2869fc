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
      SELECT t.claimed_by AS worker, count(*) AS many
      FROM horsies_tasks t
      WHERE t.claimed_by IS NOT NULL
        AND t.finished_at IS NULL
        AND t.lane = p_task.lane
        AND horsies_holds_permit(t.status, t.claim_expires_at, false, p_now)
      GROUP BY t.claimed_by
    )
    SELECT coalesce(
      jsonb_agg(
        jsonb_build_object(
          'worker_id', w.id,
          'hostname', w.hostname,
          'pid', w.pid,
          'beat_at', b.sent_at,
          'slots', horsies_ready_processes(w)
            * CASE p_task.lane WHEN 'sync' THEN w.threads ELSE w.async_concurrency END,
          'busy', coalesce(busy.many, 0),
          'room', (
            horsies_remaining_capacity(ARRAY[v_local], w.id, p_claimed, p_now, NULL)
          ).rooms[1],
          'partition_room', CASE
            WHEN p_key IS NOT NULL THEN (
              SELECT r.room
              FROM horsies_partition_rooms(p_limits, ARRAY[p_key], w.id, p_claimed, p_now) AS r
            )
          END,
          'wire', coalesce(w.wire, 1),
          'knows', horsies_worker_knows(p_task.task_name, p_task.options, w)
        )
        ORDER BY w.started_at, w.id
      ),
      '[]'
    )
    FROM horsies_workers w
    JOIN horsies_heartbeats b ON b.id = w.id
    LEFT JOIN busy ON busy.worker = w.id
    WHERE w.id IN (SELECT horsies_living_workers(p_task.queue_name, p_threshold))
      AND (p_task.claimed_by IS NULL OR w.id = p_task.claimed_by)
  );
END
$$;
