-- Send: the tasks of one call appear, PENDING, in the caller's transaction. The trigger on the table wakes the workers.
-- Rows of one transaction share now(); their ids, which grow, keep them in order. A delay counts from this very moment.
-- The partition follows from the queue's rule, and the rule's version is kept: whoever meets a row of an older rule keys it anew.
-- Locks: none but the new rows. Index: primary key of horsies_queues.
INSERT INTO horsies_tasks (id, task_name, queue_name, lane, priority, kwargs, sent_at, enqueued_at, good_until,
                           partition_key, partition_version, max_retries, options)
SELECT sent.id, %(task_name)s::text, %(queue_name)s::text, %(lane)s::text, %(priority)s::smallint, sent.kwargs::jsonb,
       clock_timestamp(), coalesce(%(due_at)s::timestamptz, clock_timestamp() + %(delay)s::interval, now()),
       %(good_until)s::timestamptz,
       horsies_partition_v1(queue.partition_by_args, queue.partition_by_task, sent.kwargs::jsonb, %(task_name)s::text),
       queue.partition_version, %(max_retries)s::smallint, %(options)s::jsonb
FROM unnest(%(ids)s::uuid[], %(kwargs)s::text[]) AS sent (id, kwargs)
LEFT JOIN horsies_queues queue ON queue.name = %(queue_name)s::text
