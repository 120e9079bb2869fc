-- Returns how many tasks a worker would take before a due task, counted up to p_bound: tasks of its lane, in its queue and in the queues of
-- the same or a higher priority that the worker serves (p_queues) and that have room.
-- The other lane has slots of its own (p_other of them free), so its tasks count only if they would use up the room of the queue or of the
-- cluster (p_cluster_room). If the task's partition is full, the parked tasks before it count too. p_worker NULL: any worker, serving only
-- this queue.
-- Locks: none. Index: horsies_tasks_claim, horsies_tasks_parked, horsies_tasks_holding, primary keys.
CREATE FUNCTION horsies_tasks_ahead(p_task horsies_tasks, p_limits horsies_limits, p_key text, p_full boolean, p_cluster_room int, p_worker uuid,
                              p_queues jsonb, p_other int, p_claimed boolean, p_grace interval, p_now timestamptz, p_bound int)
RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_lane text := CASE p_task.lane WHEN 'sync' THEN 'async' ELSE 'sync' END;
  v_room int := (horsies_remaining_capacity(p_limits, p_worker, p_claimed, p_now)).room;
  v_same int := 0;
  v_across int := 0;
  v_beside int := 0;
  v_limits horsies_limits;
  v_own boolean;
  v_but text[];
  v_priority int;
  v_some int;
  v_taker horsies_workers;
BEGIN
  SELECT w.* INTO v_taker FROM horsies_workers w WHERE w.id = p_worker;
  IF p_full THEN
    SELECT count(*) INTO v_same
    FROM (
      SELECT FROM horsies_tasks t
      WHERE t.queue_name = p_task.queue_name AND t.partition_key = p_key AND t.lane = p_task.lane
        AND t.claimed_by IS NULL AND t.finished_at IS NULL AND t.parked
        AND (t.priority, t.enqueued_at, t.id) < (p_task.priority, p_task.enqueued_at, p_task.id)
      ORDER BY t.priority, t.enqueued_at, t.id LIMIT p_bound
    ) AS parked;
  END IF;
  FOR v_limits IN
    SELECT e.* FROM horsies_queues q CROSS JOIN LATERAL horsies_effective_limits(q) AS e
    WHERE q.name = p_task.queue_name OR (p_queues ? q.name AND e.priority <= p_limits.priority) ORDER BY e.priority, q.name
  LOOP
    EXIT WHEN v_same >= p_bound;
    v_own := v_limits.queue_name = p_task.queue_name;
    CONTINUE WHEN NOT v_own AND (horsies_remaining_capacity(v_limits, p_worker, p_claimed, p_now)).room <= 0;
    v_but := horsies_full_partitions(v_limits, p_worker, p_claimed, p_now);
    IF v_own AND p_key IS NOT NULL THEN
      v_but := array_remove(v_but, p_key);
    END IF;
    v_priority := CASE WHEN v_limits.priority < p_limits.priority THEN 32767 ELSE p_task.priority END;
    v_same := v_same + horsies_tasks_before(v_limits, p_task.lane, v_but, v_priority, p_task.enqueued_at, p_task.id, v_taker,
                                      p_grace, p_now, p_bound - v_same);
    IF p_other > 0 AND (p_cluster_room IS NOT NULL OR (v_own AND v_room IS NOT NULL)) THEN
      v_some := horsies_tasks_before(v_limits, v_lane, v_but, v_priority, p_task.enqueued_at, p_task.id, v_taker, p_grace, p_now, p_other);
      v_across := v_across + v_some;
      IF v_own THEN
        v_beside := v_some;
      END IF;
    END IF;
  END LOOP;
  RETURN least(p_bound, v_same + CASE
    WHEN least(v_across, p_other) >= p_cluster_room THEN v_across
    WHEN v_beside >= v_room THEN v_beside
    ELSE 0 END);
END
$$;
