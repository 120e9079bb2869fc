-- Starts prefetched tasks of a worker if the claim is still its own, the lease has not ended, good_until has not passed, and queue and
-- partition have room (only running tasks count in soft mode), and their run lets them start. Other tasks expire or are released.
-- Moves CLAIMED -> RUNNING, PENDING (late ones expire). Each array has the order of p_starts; a task in none of them belongs to another
-- worker now, or its row is locked.
-- Locks: task rows, skipping locked ones; the caller holds the advisory locks. Index: primary key, horsies_tasks_holding,
-- horsies_tasks_parked.
CREATE FUNCTION horsies_start(p_wanted horsies_wanted, p_caps horsies_caps, p_starts jsonb,
                              OUT started uuid[], OUT expired uuid[], OUT returned uuid[]) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_limits horsies_limits[] := p_caps.queues;
  v_ids uuid[];
  v_queues int[];
  v_keys text[];
  v_late boolean[];
  v_lanes text[];
  v_rooms int[];
  v_parts int[];
  v_part_rooms int[];
  v_everyone int[];
  v_verdicts text[];
  v_count int;
BEGIN
  WITH wanted AS MATERIALIZED (
    SELECT w.value ->> 'id' AS id, (w.value ->> 'generation')::int AS generation, w.place
    FROM jsonb_array_elements(p_starts) WITH ORDINALITY AS w (value, place)
  ), held AS MATERIALIZED (
    SELECT t.id, t.claim_generation, t.queue_name, t.good_until,
           CASE WHEN t.workflow_id IS NULL OR NOT EXISTS (SELECT FROM horsies_forbidding(t.workflow_id, t.node)) THEN 'sync' ELSE 'none' END AS lane,
           horsies_partition_key(l.partition_by_args, l.partition_by_task, t.kwargs, t.task_name, t.codec) AS key, l.ordinality AS queue
    FROM horsies_tasks t JOIN unnest(v_limits) WITH ORDINALITY AS l ON l.queue_name = t.queue_name
    WHERE t.id = ANY (ARRAY(SELECT wanted.id::uuid FROM wanted)) AND t.claimed_by = p_wanted.worker AND t.status = 'CLAIMED'
      AND t.claim_expires_at > p_wanted.now
    FOR NO KEY UPDATE OF t SKIP LOCKED
  )
  SELECT array_agg(h.id ORDER BY w.place), array_agg(h.queue::int ORDER BY w.place), array_agg(h.key ORDER BY w.place),
         array_agg(coalesce(h.good_until <= p_wanted.now, false) ORDER BY w.place), array_agg(h.lane ORDER BY w.place)
  INTO v_ids, v_queues, v_keys, v_late, v_lanes
  FROM wanted w JOIN held h ON h.id = w.id::uuid AND h.claim_generation = w.generation;
  v_count := cardinality(v_ids);
  IF v_count IS NULL THEN
    RETURN;
  END IF;

  v_rooms := (horsies_remaining_capacities(v_limits, p_wanted.worker, false, NULL, p_wanted.now, p_wanted.cursors)).rooms;
  SELECT a.parts, a.rooms, a.everyone INTO v_parts, v_part_rooms, v_everyone
  FROM horsies_partition_capacity(v_limits, v_queues, v_keys, p_wanted.worker, false, p_wanted.now) AS a;
  SELECT a.verdicts INTO v_verdicts
  FROM horsies_allot(v_queues, v_lanes, v_parts, v_late, array_fill(NULL::int, ARRAY[v_count]),
                     v_everyone, v_rooms, v_part_rooms, CASE p_caps.cluster WHEN 0 THEN 0 ELSE v_count END, v_count, 0, 0) AS a;

  UPDATE horsies_tasks t SET status = 'RUNNING', started_at = p_wanted.now, claim_expires_at = NULL
  FROM unnest(v_ids, v_verdicts) AS v (id, verdict) WHERE t.id = v.id AND v.verdict = 'start' AND t.status = 'CLAIMED';
  IF 'late' = ANY (v_verdicts) THEN
    PERFORM horsies_expire(
      ARRAY(SELECT v.id FROM unnest(v_ids, v_verdicts) AS v (id, verdict) WHERE v.verdict = 'late'), p_wanted.now, p_wanted.channel);
    PERFORM horsies_unpark(v_limits[e.queue].queue_name, array_agg(e.key), array_agg(e.permits))  -- tasks that were parked behind these
    FROM (SELECT v.queue, v.key, count(*)::int AS permits FROM unnest(v_queues, v_keys, v_verdicts) AS v (queue, key, verdict)
          WHERE v.verdict = 'late' AND v.key IS NOT NULL GROUP BY v.queue, v.key) AS e GROUP BY e.queue;
  END IF;
  UPDATE horsies_tasks t
  SET status = 'PENDING', claimed_by = NULL, claimed_at = NULL, claim_expires_at = NULL
  FROM unnest(v_ids, v_verdicts) AS v (id, verdict) WHERE t.id = v.id AND v.verdict NOT IN ('start', 'late') AND t.status = 'CLAIMED';
  SELECT array_agg(v.id ORDER BY v.place) FILTER (WHERE v.verdict = 'start'), array_agg(v.id ORDER BY v.place) FILTER (WHERE v.verdict = 'late'),
         array_agg(v.id ORDER BY v.place) FILTER (WHERE v.verdict NOT IN ('start', 'late'))
  INTO started, expired, returned FROM unnest(v_ids, v_verdicts) WITH ORDINALITY AS v (id, verdict, place);
END
$$;
