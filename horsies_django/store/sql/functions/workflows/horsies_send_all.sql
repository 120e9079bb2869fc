-- Sends the tasks of ready nodes, of several runs, with the results that are their arguments.
-- Raises an error if one of them cannot be sent.
-- due_at keeps the time when the delay of a node ends: a task that a pause withdrew does not wait
-- anew.
-- Returns: the number of tasks.
-- Moves: nodes READY, and PENDING ones whose last upstream nodes have just completed, -> ENQUEUED;
-- tasks (none) -> PENDING.
-- Locks: none but the new rows; the caller holds the locks of the runs.
CREATE OR REPLACE FUNCTION horsies_send_all(
  p_workflows uuid[], p_numbers bigint[], p_max_bytes int, p_now timestamptz
) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_start timestamptz := coalesce(p_now, now());
  v_many int;
BEGIN
  WITH made AS (
    INSERT INTO horsies_tasks (
      id, task_name, queue_name, lane, priority,
      kwargs,
      sent_at, enqueued_at, good_until,
      partition_key,
      partition_version, max_retries, options, codec,
      workflow_id, node, node_index)
    SELECT
      horsies_uuid7(p.place::int), n.task_name, n.queue_name, n.lane, n.priority,
      horsies_stored_arguments(k.kwargs, n.codec),
      v_now, greatest(v_start, coalesce(n.due_at, v_start + n.delay)),
      least(n.good_until, w.good_until),
      CASE
        WHEN q.partition_by_args IS NOT NULL OR q.partition_by_task THEN horsies_partition_key(
          q.partition_by_args, q.partition_by_task, k.kwargs::json, n.task_name, NULL)
      END,
      q.partition_version, n.max_retries, n.options, n.codec,
      w.id, n.number, 0
    FROM unnest(p_workflows, p_numbers) WITH ORDINALITY AS p (workflow, number, place)
    CROSS JOIN LATERAL (
      SELECT w.id, w.good_until FROM horsies_workflows w WHERE w.id = p.workflow OFFSET 0
    ) AS w
    CROSS JOIN LATERAL (  -- by the whole key, independent of the statistics
      SELECT n.*
      FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p.workflow AND n.number = p.number
      OFFSET 0
    ) AS n
    LEFT JOIN horsies_queues q ON q.name = n.queue_name
    CROSS JOIN LATERAL (  -- once, also for a key
      SELECT horsies_node_kwargs(n, p_max_bytes) AS kwargs OFFSET 0
    ) AS k
    RETURNING id, workflow_id, node
  )
  UPDATE horsies_workflow_nodes n
  SET status = 'ENQUEUED',
      task_id = m.id,
      due_at = coalesce(n.due_at, v_start + n.delay),
      open = CASE n.status WHEN 'PENDING' THEN 0 ELSE n.open END,
      ok = CASE n.status WHEN 'PENDING' THEN n.ok + n.open ELSE n.ok END
  FROM made m
  CROSS JOIN LATERAL horsies_address(m.workflow_id, m.node) AS a
  WHERE n.ctid = a.address;

  GET DIAGNOSTICS v_many = ROW_COUNT;
  RETURN v_many;
END
$$;
