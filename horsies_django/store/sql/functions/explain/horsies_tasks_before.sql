-- Counts the due tasks of the same queue and lane that come before a task in the order (priority,
-- enqueued_at, id), up to p_bound. For a parked task it counts the parked tasks of its partition.
-- Each priority is read on its own, so tasks that are due in the future cost one probe per
-- priority.
-- Index: horsies_tasks_claim, horsies_tasks_parked, in their order, no sort.
CREATE OR REPLACE FUNCTION horsies_tasks_before(
  p_task horsies_tasks, p_now timestamptz, p_bound int
) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF p_task.parked THEN
    RETURN (
      SELECT count(*)
      FROM (
        SELECT FROM horsies_tasks t
        WHERE t.queue_name = p_task.queue_name
          AND t.partition_key = p_task.partition_key
          AND t.lane = p_task.lane
          AND t.claimed_by IS NULL
          AND t.finished_at IS NULL
          AND t.parked
          AND (t.priority, t.enqueued_at, t.id) < (p_task.priority, p_task.enqueued_at, p_task.id)
        ORDER BY t.priority, t.enqueued_at, t.id
        LIMIT p_bound
      ) AS earlier
    );
  END IF;

  RETURN (
    SELECT count(*)
    FROM (
      SELECT FROM generate_series(1, p_task.priority) AS p (priority)
      CROSS JOIN LATERAL (
        SELECT FROM horsies_tasks t
        WHERE t.queue_name = p_task.queue_name
          AND t.lane = p_task.lane
          AND t.priority = p.priority
          AND t.claimed_by IS NULL
          AND t.finished_at IS NULL
          AND NOT t.parked
          AND (t.enqueued_at, t.id) < (
            CASE WHEN p.priority < p_task.priority THEN p_now ELSE p_task.enqueued_at END,
            p_task.id
          )
        ORDER BY t.enqueued_at, t.id
        LIMIT p_bound
      ) AS of_priority
      LIMIT p_bound
    ) AS earlier
  );
END
$$;
