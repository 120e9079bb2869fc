-- Returns the living workers that could take a task, or only the one that has claimed it, as JSON objects.
-- Keys: worker_id, hostname, pid, beat_at, queues; slots and busy (of the task's lane; busy counts rows, which are newer than the last
-- heartbeat), other_free (free slots of the other lane), room (under the queue's limit per worker, NULL without one), partition_room (NULL
-- without one), wire (the latest format that it reads), knows (it can run the task), strange (it leaves the task to others until p_grace is over).
-- Locks: none. Index: horsies_tasks_holding, primary keys.
CREATE FUNCTION horsies_eligible_workers(p_task horsies_tasks, p_limits horsies_limits, p_key text, p_claimed boolean, p_grace interval,
                               p_now timestamptz) RETURNS jsonb
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_local horsies_limits := p_limits;
BEGIN
  v_local.max_concurrency := NULL;
  RETURN (
    WITH busy AS MATERIALIZED (
      SELECT t.claimed_by AS worker, count(*) FILTER (WHERE t.lane = p_task.lane) AS same, count(*) FILTER (WHERE t.lane <> p_task.lane) AS other
      FROM horsies_tasks t
      WHERE t.claimed_by IS NOT NULL AND t.finished_at IS NULL AND horsies_holds_permit(t.status, t.claim_expires_at, false, p_now)
      GROUP BY t.claimed_by
    ), slots AS MATERIALIZED (
      SELECT w.id, greatest(w.processes, 1) * CASE p_task.lane WHEN 'sync' THEN w.threads ELSE w.async_concurrency END AS same,
             greatest(w.processes, 1) * CASE p_task.lane WHEN 'sync' THEN w.async_concurrency ELSE w.threads END AS other
      FROM horsies_workers w WHERE w.id IN (SELECT horsies_workers_serving(p_task.queue_name))
    )
    SELECT coalesce(jsonb_agg(jsonb_build_object(
      'worker_id', w.id, 'hostname', w.hostname, 'pid', w.pid, 'beat_at', b.sent_at, 'queues', w.queues,
      'slots', slots.same, 'busy', coalesce(busy.same, 0), 'other_free', greatest(slots.other - coalesce(busy.other, 0), 0),
      'room', (horsies_remaining_capacity(v_local, w.id, p_claimed, p_now)).room,
      'partition_room', CASE WHEN p_key IS NOT NULL THEN (
        SELECT a.rooms[1] FROM horsies_partition_capacity(ARRAY[p_limits], ARRAY[1], ARRAY[p_key], w.id, p_claimed, p_now) AS a) END,
      'wire', coalesce(w.wire, 1), 'knows', horsies_worker_knows(p_task.task_name, p_task.options, w),
      'strange', horsies_left_to_others(p_task.task_name, p_task.options, p_task.enqueued_at, p_task.good_until, w, p_grace, p_now)) ORDER BY w.started_at, w.id), '[]')
    FROM slots JOIN horsies_workers w ON w.id = slots.id JOIN horsies_heartbeats b ON b.id = w.id LEFT JOIN busy ON busy.worker = w.id
    WHERE p_task.claimed_by IS NULL OR w.id = p_task.claimed_by);
END
$$;
