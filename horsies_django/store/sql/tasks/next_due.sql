-- Returns when the next waiting task of queues, or the next wait of a workflow, becomes due between
-- two times, in microseconds since 1970; NULL if none does. It is for drain(until=...).
-- Index: horsies_tasks_claim, horsies_tasks_parked, horsies_workflow_nodes_due. All waiting tasks
-- are read, which are few in a test.
SELECT (extract(epoch FROM least(min(task.enqueued_at), (
  SELECT min(node.due_at)
  FROM horsies_workflow_nodes node
  WHERE node.status = 'WAITING'
    AND node.finished_at IS NULL
    AND node.due_at > %(after)s::timestamptz
    AND node.due_at <= %(until)s::timestamptz
))) * 1000000)::bigint
FROM horsies_tasks task
WHERE task.queue_name = ANY (%(queues)s::text[])
  AND task.claimed_by IS NULL
  AND task.finished_at IS NULL
  AND task.enqueued_at > %(after)s::timestamptz
  AND task.enqueued_at <= %(until)s::timestamptz
