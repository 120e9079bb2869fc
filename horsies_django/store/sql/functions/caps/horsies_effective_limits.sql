-- Returns the limits in force of a queue: the overridden values, else the declared ones. A paused
-- queue has max_concurrency 0. With a policy for partitions, one task of a partition runs at a
-- time.
-- Args: p_queue is the row of the queue.
CREATE OR REPLACE FUNCTION horsies_effective_limits(p_queue horsies_queues) RETURNS horsies_limits
LANGUAGE sql STABLE AS $$
  SELECT jsonb_populate_record(
    NULL::horsies_limits,
    to_jsonb(p_queue)
      || coalesce(p_queue.override, '{}')
      || jsonb_build_object('queue_name', p_queue.name)
      || CASE WHEN p_queue.paused_at IS NULL THEN '{}' ELSE '{"max_concurrency": 0}' END::jsonb
      || CASE
        WHEN p_queue.partition_policy IS NULL THEN '{}'
        ELSE '{"partition_max_concurrency": 1}'
      END::jsonb
  )
$$;
