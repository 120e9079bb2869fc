-- Starts prefetched tasks of a worker if the claim is still its own, the lease has not ended,
-- good_until has not passed, queue and partition have room (only running tasks count in soft mode),
-- the cluster is not paused, and their run does not forbid it. Of the claims that the worker still
-- holds, the others expire or are released.
-- Returns: started, expired, returned: ids, in the order of p_starts. A task in none of them
-- belongs to another worker now, its lease has ended, or its row is locked. earliest: see
-- horsies_release.
-- Moves: CLAIMED -> RUNNING, PENDING; late tasks: see horsies_expire.
-- Locks: task rows, skipping locked ones; the caller holds the advisory locks.
-- Index: primary key, horsies_tasks_holding, horsies_tasks_parked.
CREATE OR REPLACE FUNCTION horsies_start(
  p_wanted horsies_wanted, p_limits horsies_limits[], p_paused boolean, p_starts jsonb,
  OUT started uuid[], OUT expired uuid[], OUT returned uuid[], OUT earliest timestamptz
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_candidates horsies_candidate[];
BEGIN
  WITH wanted AS MATERIALIZED (
    SELECT
      entry.value ->> 'id' AS id,
      (entry.value ->> 'generation')::int AS generation,
      entry.place
    FROM jsonb_array_elements(p_starts) WITH ORDINALITY AS entry (value, place)
  ),
  held AS MATERIALIZED (
    SELECT
      task.id, task.claim_generation, limits.ordinality::int AS queue, task.priority,
      task.enqueued_at,
      coalesce(task.good_until <= p_wanted.now, false) AS late,
      CASE
        WHEN task.workflow_id IS NULL
          OR NOT EXISTS (SELECT FROM horsies_forbidding(task.workflow_id, task.node))
          THEN 'sync'
        ELSE 'none'
      END AS lane,
      horsies_partition_key(
        limits.partition_by_args, limits.partition_by_task, task.kwargs, task.task_name, task.codec
      ) AS key
    FROM horsies_tasks task
    JOIN unnest(p_limits) WITH ORDINALITY AS limits ON limits.queue_name = task.queue_name
    WHERE task.id = ANY (ARRAY(SELECT wanted.id::uuid FROM wanted))
      AND task.claimed_by = p_wanted.worker
      AND task.status = 'CLAIMED'
      AND task.claim_expires_at > p_wanted.now
    FOR NO KEY UPDATE OF task SKIP LOCKED
  )
  SELECT array_agg(
    ROW(
      held_task.id, held_task.queue, held_task.lane, held_task.priority, held_task.enqueued_at,
      held_task.key, false, held_task.late, ''
    )::horsies_candidate
    ORDER BY wanted_start.place)
  INTO v_candidates
  FROM wanted wanted_start
  JOIN held held_task
    ON held_task.id = wanted_start.id::uuid
    AND held_task.claim_generation = wanted_start.generation;

  IF v_candidates IS NULL THEN
    RETURN;
  END IF;

  p_wanted.sync := cardinality(v_candidates);
  p_wanted.async := 0;
  p_wanted.prefetch := 0;
  p_wanted.total := CASE WHEN p_paused THEN 0 ELSE p_wanted.sync END;
  p_wanted.lease := '0';  -- claims hold no permits

  SELECT a.p_candidates
  INTO v_candidates
  FROM horsies_allot(
    p_limits, NULL, p_wanted,
    (horsies_remaining_capacity(
      p_limits, p_wanted.worker, false, p_wanted.now, p_wanted.cursors)).rooms,
    v_candidates
  ) AS a;

  SELECT
    array_agg(v.id ORDER BY v.ordinality) FILTER (WHERE v.verdict = 'start'),
    array_agg(v.id ORDER BY v.ordinality) FILTER (WHERE v.verdict = 'late'),
    array_agg(v.id ORDER BY v.ordinality) FILTER (WHERE v.verdict NOT IN ('start', 'late'))
  INTO started, expired, returned
  FROM unnest(v_candidates) WITH ORDINALITY AS v;

  UPDATE horsies_tasks t
  SET status = 'RUNNING', started_at = p_wanted.now, claim_expires_at = NULL
  WHERE t.id = ANY (started) AND t.status = 'CLAIMED';

  IF expired IS NOT NULL THEN
    PERFORM horsies_expire(expired, p_wanted.now, p_wanted.channel);

    PERFORM horsies_unpark(  -- tasks that were parked behind these
      p_limits, array_agg(p_limits[v.queue].queue_name::text), array_agg(v.key))
    FROM unnest(v_candidates) AS v
    WHERE v.verdict = 'late';
  END IF;

  IF returned IS NOT NULL THEN
    earliest := (horsies_release(
      p_wanted,
      (
        SELECT jsonb_agg(s.value)
        FROM jsonb_array_elements(p_starts) AS s
        WHERE (s.value ->> 'id')::uuid = ANY (returned)
      ),
      false)).earliest;
  END IF;
END
$$;
