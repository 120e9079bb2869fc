-- Counts the permits of queues that are in use, and returns how many more of their tasks may start
-- on a worker, under the cap and the limit per worker. For the cluster ('*'), in which claims
-- always hold permits, it returns how many more tasks may be in flight.
--
-- Claims under a cap are serialized, so later claims have later times: the times in "held" are all
-- that the next count reads. Times after p_now are ignored, because the clock was set back. This
-- skips dead index entries that vacuum cannot remove yet, see docs/explanation/the-pass.md. For
-- tasks without a partition only these times are read; for others, all from the first one on.
-- Args:
--   p_claimed: whether claims hold permits (hard mode).
--   p_cursors: an object with a key for each queue whose times are wanted; its value has "held" of
--     the previous count, if there was one.
-- Returns:
--   rooms: the room of each queue, in the order of p_limits; NULL for no limit.
--   held: for each queue in p_cursors that has a cap, the times at which its tasks in flight were
--     claimed: the first eight, then one from which on all others were (p_now if there are none).
-- Locks: none; the count is exact only under the advisory locks of the queues.
-- Index: horsies_tasks_holding.
CREATE OR REPLACE FUNCTION horsies_remaining_capacity(
  p_limits horsies_limits[], p_worker uuid, p_claimed boolean, p_now timestamptz, p_cursors jsonb,
  OUT rooms int[], OUT held jsonb
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  c_singly CONSTANT int := 8;
  v_limits horsies_limits;
  v_version int;
  v_tracked boolean;
  v_singly timestamptz[];
  v_since timestamptz;
  v_load record;
BEGIN
  rooms := '{}';
  held := '{}';
  FOREACH v_limits IN ARRAY p_limits LOOP
    IF v_limits.max_concurrency IS NULL AND v_limits.local_limit IS NULL THEN
      rooms := rooms || NULL::int;
      CONTINUE;
    END IF;

    v_tracked := v_limits.max_concurrency IS NOT NULL AND p_cursors ? v_limits.queue_name;
    v_since := NULL;
    IF v_tracked AND p_cursors -> v_limits.queue_name ? 'held' THEN
      v_singly := ARRAY(
        SELECT m::timestamptz
        FROM jsonb_array_elements_text(p_cursors -> v_limits.queue_name -> 'held') AS m
      );
      v_since := v_singly[cardinality(v_singly)];
    END IF;

    IF v_limits.queue_name = '*' THEN
      SELECT count(*) AS held, NULL::bigint AS here, NULL::timestamptz[] AS moments
      INTO v_load
      FROM horsies_tasks t
      WHERE t.claimed_by IS NOT NULL
        AND t.finished_at IS NULL
        AND horsies_holds_permit(t.status, t.claim_expires_at, true, p_now);

    ELSIF coalesce(v_since > p_now, true) THEN
      SELECT
        count(*) FILTER (WHERE h.holds) AS held,
        count(*) FILTER (WHERE h.holds AND h.claimed_by = p_worker) AS here,
        array_agg(DISTINCT h.claimed_at) FILTER (WHERE v_tracked) AS moments
      INTO v_load
      FROM (
        SELECT
          t.claimed_by,
          t.claimed_at,
          horsies_holds_permit(t.status, t.claim_expires_at, p_claimed, p_now) AS holds
        FROM horsies_tasks t
        WHERE t.queue_name = v_limits.queue_name
          AND t.claimed_by IS NOT NULL
          AND t.finished_at IS NULL
      ) AS h;

    ELSE
      v_version := coalesce(v_limits.partition_version, 0);

      SELECT
        count(*) FILTER (WHERE h.holds) AS held,
        count(*) FILTER (WHERE h.holds AND h.claimed_by = p_worker) AS here,
        array_agg(DISTINCT h.claimed_at) AS moments
      INTO v_load
      FROM (
        SELECT
          t.claimed_by,
          t.claimed_at,
          horsies_holds_permit(t.status, t.claim_expires_at, p_claimed, p_now) AS holds
        FROM (
          -- without a partition: from the last of the times on
          SELECT n.*
          FROM horsies_tasks n
          WHERE n.queue_name = v_limits.queue_name
            AND n.claimed_by IS NOT NULL
            AND n.finished_at IS NULL
            AND n.partition_version = v_version
            AND n.partition_key IS NULL
            AND n.claimed_at >= v_since
          UNION ALL
          -- without a partition: at each of the times before it; = ANY may be a filter only
          SELECT n.*
          FROM unnest(v_singly[1 : cardinality(v_singly) - 1]) AS s (claimed_at)
          CROSS JOIN LATERAL (
            SELECT n.*
            FROM horsies_tasks n
            WHERE n.queue_name = v_limits.queue_name
              AND n.claimed_by IS NOT NULL
              AND n.finished_at IS NULL
              AND n.partition_version = v_version
              AND n.partition_key IS NULL
              AND n.claimed_at = s.claimed_at
            OFFSET 0
          ) AS n
          UNION ALL
          -- with a partition
          SELECT n.*
          FROM horsies_tasks n
          WHERE n.queue_name = v_limits.queue_name
            AND n.claimed_by IS NOT NULL
            AND n.finished_at IS NULL
            AND n.partition_version = v_version
            AND n.partition_key IS NOT NULL
            AND n.claimed_at >= v_singly[1]
          UNION ALL
          -- with the key of another rule, or of none
          SELECT n.*
          FROM horsies_tasks n
          WHERE n.queue_name = v_limits.queue_name
            AND n.claimed_by IS NOT NULL
            AND n.finished_at IS NULL
            AND n.partition_version < v_version
            AND n.claimed_at >= v_singly[1]
          UNION ALL
          SELECT n.*
          FROM horsies_tasks n
          WHERE n.queue_name = v_limits.queue_name
            AND n.claimed_by IS NOT NULL
            AND n.finished_at IS NULL
            AND n.partition_version > v_version
            AND n.claimed_at >= v_singly[1]
          UNION ALL
          SELECT n.*
          FROM horsies_tasks n
          WHERE n.queue_name = v_limits.queue_name
            AND n.claimed_by IS NOT NULL
            AND n.finished_at IS NULL
            AND n.partition_version IS NULL
            AND n.claimed_at >= v_singly[1]
        ) AS t
      ) AS h;
    END IF;

    rooms := rooms || greatest(
      0,
      least(v_limits.max_concurrency - v_load.held, v_limits.local_limit - v_load.here)
    )::int;
    IF v_tracked THEN
      held := held || jsonb_build_object(
        v_limits.queue_name,
        (v_load.moments || p_now)[1 : c_singly + 1]
      );
    END IF;
  END LOOP;
END
$$;
