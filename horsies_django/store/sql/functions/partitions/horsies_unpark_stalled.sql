-- Unparks the next tasks of stalled partitions and wakes the workers.
-- A task that has ended meanwhile keeps its key, unless it was redacted or purged: but the
-- transaction that ended it has unparked the next one, and a failed task for which others wait
-- keeps its row and key. Only the reaper unparks no task after a parked task that expired. If this
-- one is redacted within the two seconds until a worker tries again, the sweep finds its partition.
-- Args:
--   p_tasks: a task of each partition, whose id horsies_unpark or horsies_lock_head has notified.
--     Ids without a row, without a key or of other queues count for nothing.
--   p_queues: the queues that the worker serves.
-- Locks: the rows that it unparks, skipping locked ones.
-- Index: primary key; see horsies_unpark.
CREATE OR REPLACE FUNCTION horsies_unpark_stalled(
  p_tasks uuid[], p_queues text[], p_channel text
) RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_queues text[];
  v_keys text[];
BEGIN
  SELECT array_agg(stalled.queue_name), array_agg(stalled.partition_key)
  INTO v_queues, v_keys
  FROM (
    SELECT DISTINCT t.queue_name::text, t.partition_key
    FROM horsies_tasks t
    WHERE t.id = ANY (p_tasks)
      AND t.queue_name = ANY (p_queues)
      AND t.partition_key IS NOT NULL
  ) AS stalled;

  IF v_keys IS NOT NULL THEN
    PERFORM horsies_unpark_next(v_queues, v_keys, p_channel);
  END IF;
END
$$;
