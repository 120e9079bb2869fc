-- Returns the partitions of a queue that have tasks in flight, under the rule in force.
-- Locks: none. Index: horsies_tasks_holding.
CREATE FUNCTION horsies_partitions_in_use(p_limits horsies_limits) RETURNS text[] LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
  RETURN ARRAY(
    SELECT DISTINCT k.key
    FROM horsies_tasks t
    CROSS JOIN LATERAL (
      SELECT CASE WHEN t.partition_version = p_limits.partition_version THEN t.partition_key
                  ELSE horsies_partition_key(p_limits.partition_by_args, p_limits.partition_by_task, t.kwargs, t.task_name, t.codec) END AS key
    ) AS k
    WHERE t.queue_name = p_limits.queue_name AND t.claimed_by IS NOT NULL AND t.finished_at IS NULL AND k.key IS NOT NULL);
END
$$;
