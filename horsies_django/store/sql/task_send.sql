-- Send: the tasks of one call appear, PENDING, in the caller's transaction. The trigger on the table wakes the workers.
-- Rows of one transaction share now(); their ids, which grow, keep them in order. A delay counts from this very moment.
-- Locks: none but the new rows.
INSERT INTO horsies_tasks (id, task_name, queue_name, lane, priority, kwargs, sent_at, enqueued_at, good_until)
SELECT sent.id, %(task_name)s::text, %(queue_name)s::text, %(lane)s::text, %(priority)s::smallint, sent.kwargs::jsonb,
       clock_timestamp(), coalesce(%(due_at)s::timestamptz, clock_timestamp() + %(delay)s::interval, now()),
       %(good_until)s::timestamptz
FROM unnest(%(ids)s::uuid[], %(kwargs)s::text[]) AS sent (id, kwargs)
