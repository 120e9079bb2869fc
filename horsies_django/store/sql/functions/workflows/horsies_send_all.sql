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
      horsies_uuid7(entry.place::int),
      ready_node.task_name, ready_node.queue_name, ready_node.lane, ready_node.priority,
      horsies_stored_arguments(arguments.kwargs, ready_node.codec),
      v_now, greatest(v_start, coalesce(ready_node.due_at, v_start + ready_node.delay)),
      least(ready_node.good_until, run.good_until),
      CASE
        WHEN queue.partition_by_args IS NOT NULL OR queue.partition_by_task
          THEN horsies_partition_key(
            queue.partition_by_args, queue.partition_by_task,
            arguments.kwargs::json, ready_node.task_name, NULL)
      END,
      queue.partition_version, ready_node.max_retries, ready_node.options, ready_node.codec,
      run.id, ready_node.number, 0
    FROM unnest(p_workflows, p_numbers) WITH ORDINALITY AS entry (workflow, number, place)
    CROSS JOIN LATERAL (
      SELECT run.id, run.good_until
      FROM horsies_workflows run
      WHERE run.id = entry.workflow
      OFFSET 0
    ) AS run
    CROSS JOIN LATERAL (  -- by the whole key, independent of the statistics
      SELECT ready_node.*
      FROM horsies_workflow_nodes ready_node
      WHERE ready_node.workflow_id = entry.workflow AND ready_node.number = entry.number
      OFFSET 0
    ) AS ready_node
    LEFT JOIN horsies_queues queue ON queue.name = ready_node.queue_name
    CROSS JOIN LATERAL (  -- once, also for a key
      SELECT horsies_node_kwargs(ready_node, p_max_bytes) AS kwargs OFFSET 0
    ) AS arguments
    RETURNING id, workflow_id, node
  )
  UPDATE horsies_workflow_nodes ready_node
  SET status = 'ENQUEUED',
      task_id = sent_task.id,
      due_at = coalesce(ready_node.due_at, v_start + ready_node.delay),
      open = CASE ready_node.status WHEN 'PENDING' THEN 0 ELSE ready_node.open END,
      ok = CASE ready_node.status
        WHEN 'PENDING' THEN ready_node.ok + ready_node.open
        ELSE ready_node.ok
      END
  FROM made sent_task
  CROSS JOIN LATERAL horsies_address(sent_task.workflow_id, sent_task.node) AS node_row
  WHERE ready_node.ctid = node_row.address;

  GET DIAGNOSTICS v_many = ROW_COUNT;
  RETURN v_many;
END
$$;
