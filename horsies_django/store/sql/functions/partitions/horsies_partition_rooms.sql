-- Counts the permits that partitions of a queue hold, and returns how many more of their tasks may
-- start.
-- Tasks that the pass of p_now prefetched without permits (in soft mode) count against the room,
-- because its next round must not take more. The keys of tasks with an older rule are computed
-- again for the count.
-- Args:
--   p_keys: the partitions; NULL for all that have tasks in flight.
--   p_claimed: whether claims hold permits (hard mode).
-- Returns: a row for each partition; NULL rooms mean no limit.
--   held: the permits on all workers.
--   room: how many more tasks may start on the worker.
--   everyone: how many more tasks may start on all workers, by the cap of the partition and by its
--     limit per worker times the number of workers that serve the queue, at least one.
-- Locks: none; the count is exact only under the advisory lock of the queue.
-- Index: horsies_tasks_holding.
CREATE OR REPLACE FUNCTION horsies_partition_rooms(
  p_limits horsies_limits, p_keys text[], p_worker uuid, p_claimed boolean, p_now timestamptz
) RETURNS TABLE (key text, held int, room int, everyone int) LANGUAGE plpgsql VOLATILE ROWS 100
SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_workers int;
BEGIN
  IF p_limits.partition_local_limit IS NOT NULL THEN
    v_workers := (
      SELECT greatest(count(*), 1)
      FROM horsies_workers_serving(p_limits.queue_name)
    );
  END IF;

  IF p_keys IS NULL THEN
    p_keys := ARRAY(
      SELECT DISTINCT k.key
      FROM horsies_tasks t
      CROSS JOIN LATERAL (
        SELECT
          CASE
            WHEN t.partition_version = p_limits.partition_version THEN t.partition_key
            ELSE horsies_partition_key(
              p_limits.partition_by_args, p_limits.partition_by_task,
              t.kwargs, t.task_name, t.codec
            )
          END AS key
      ) AS k
      WHERE t.queue_name = p_limits.queue_name
        AND t.claimed_by IS NOT NULL
        AND t.finished_at IS NULL
        AND k.key IS NOT NULL
    );
  END IF;

  RETURN QUERY
  SELECT
    asked.key,
    load.held,
    least(
      p_limits.partition_max_concurrency - load.held,
      p_limits.partition_local_limit - load.here
    ) - load.ahead,
    least(
      p_limits.partition_max_concurrency,
      p_limits.partition_local_limit * v_workers
    ) - load.held
  FROM unnest(p_keys) AS asked (key)
  CROSS JOIN LATERAL (
    SELECT
      (count(*) FILTER (WHERE h.holds))::int AS held,
      (count(*) FILTER (WHERE h.holds AND h.claimed_by = p_worker))::int AS here,
      (
        count(*) FILTER (
          WHERE NOT h.holds AND h.claimed_by = p_worker AND h.claimed_at = p_now
        )
      )::int AS ahead
    FROM (
      SELECT
        t.claimed_by,
        t.claimed_at,
        horsies_holds_permit(t.status, t.claim_expires_at, p_claimed, p_now) AS holds
      FROM (
        SELECT n.*
        FROM horsies_tasks n
        WHERE n.queue_name = p_limits.queue_name
          AND n.claimed_by IS NOT NULL
          AND n.finished_at IS NULL
          AND n.partition_version = p_limits.partition_version
          AND n.partition_key = asked.key
        UNION ALL
        SELECT o.*
        FROM horsies_tasks o
        WHERE o.queue_name = p_limits.queue_name
          AND o.claimed_by IS NOT NULL
          AND o.finished_at IS NULL
          AND o.partition_version < p_limits.partition_version
          AND horsies_partition_key(
            p_limits.partition_by_args, p_limits.partition_by_task, o.kwargs, o.task_name, o.codec
          ) = asked.key
        UNION ALL
        SELECT o.*
        FROM horsies_tasks o
        WHERE o.queue_name = p_limits.queue_name
          AND o.claimed_by IS NOT NULL
          AND o.finished_at IS NULL
          AND o.partition_version IS NULL
          AND horsies_partition_key(
            p_limits.partition_by_args, p_limits.partition_by_task, o.kwargs, o.task_name, o.codec
          ) = asked.key
      ) AS t
    ) AS h
  ) AS load;
END
$$;
