-- Releases tasks whose code never began. No attempt is used. A task whose cancellation was
-- requested is cancelled instead. Workers are notified: with p_wakes they look into the queues,
-- else the next scans include these tasks, which may lie before the scan cursors.
-- Args:
--   p_claims: claims of a worker, fenced by worker and claim generation; NULL: claims of the queues
--     that it serves whose lease ended, up to 1,000; their old holder misses them when it tries
--     to start them.
-- Returns:
--   queues, keys: the queues and partitions of what was released.
--   missed: the ids in p_claims that were not released.
--   earliest: the earliest due time of the tasks that wait again; -infinity if folded ones do.
-- Moves: CLAIMED, RUNNING -> PENDING, CANCELLED.
-- Locks: the task rows, skipping locked ones.
-- Index: primary key; horsies_tasks_holding for leases.
CREATE OR REPLACE FUNCTION horsies_release(
  p_wanted horsies_wanted, p_claims jsonb, p_wakes boolean,
  OUT queues text[], OUT keys text[], OUT missed uuid[], OUT earliest timestamptz
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_ids uuid[];
  v_cancelled uuid[];
  v_ordered uuid[];
BEGIN
  IF p_claims IS NULL THEN
    v_ids := ARRAY(
      SELECT t.id
      FROM horsies_tasks t
      WHERE t.queue_name = ANY (p_wanted.queues)
        AND t.claimed_by IS NOT NULL
        AND t.finished_at IS NULL
        AND t.status = 'CLAIMED'
        AND t.claim_expires_at <= v_now
      LIMIT 1000
      FOR NO KEY UPDATE SKIP LOCKED);
    IF v_ids = '{}' THEN
      RETURN;
    END IF;
  ELSE
    WITH claim AS MATERIALIZED (
      SELECT * FROM jsonb_to_recordset(p_claims) AS c (id uuid, generation int)
    ),
    held AS MATERIALIZED (
      SELECT t.id, t.claim_generation
      FROM horsies_tasks t
      WHERE t.id = ANY (ARRAY(SELECT claim.id FROM claim))
        AND t.claimed_by = p_wanted.worker
        AND t.status IN ('CLAIMED', 'RUNNING')
      FOR NO KEY UPDATE SKIP LOCKED
    )
    SELECT coalesce(array_agg(h.id), '{}')
    INTO v_ids
    FROM held h
    JOIN claim c ON c.id = h.id AND c.generation = h.claim_generation;

    missed := ARRAY(
      SELECT c.id FROM jsonb_to_recordset(p_claims) AS c (id uuid) WHERE c.id <> ALL (v_ids));
  END IF;

  WITH released AS (  -- their rows are locked by now, behind the fence
    UPDATE horsies_tasks t
    SET
      status = CASE WHEN t.cancel_requested_at IS NULL THEN 'PENDING' ELSE 'CANCELLED' END,
      finished_at = CASE WHEN t.cancel_requested_at IS NOT NULL THEN v_now END,
      error_code = CASE WHEN t.cancel_requested_at IS NOT NULL THEN 'TASK_CANCELLED' END,
      result = CASE WHEN t.cancel_requested_at IS NOT NULL
        THEN horsies_error_result('TASK_CANCELLED', 'the task was cancelled before it started')
      END,
      claimed_by = NULL,
      claimed_at = NULL,
      claim_expires_at = NULL,
      started_at = NULL
    WHERE t.id = ANY (v_ids) AND t.status IN ('CLAIMED', 'RUNNING')
    RETURNING t.id, t.queue_name, t.partition_key, t.finished_at, t.enqueued_at, t.ordered
  ),
  notified AS (
    SELECT pg_notify(
      p_wanted.channel || '_new',
      extract(epoch FROM min(r.enqueued_at))
        || CASE WHEN p_wakes THEN ' ' ELSE ' behind ' END
        || r.queue_name)
    FROM released r
    WHERE r.finished_at IS NULL
    GROUP BY r.queue_name
  )
  SELECT
    coalesce(array_agg(r.queue_name::text), '{}'),
    coalesce(array_agg(r.partition_key), '{}'),
    coalesce(array_agg(r.id) FILTER (WHERE r.finished_at IS NOT NULL), '{}'),
    min(r.enqueued_at) FILTER (WHERE r.finished_at IS NULL),
    array_agg(r.id) FILTER (WHERE r.ordered)
  INTO queues, keys, v_cancelled, earliest, v_ordered
  FROM released r
  WHERE (SELECT count(*) FROM notified) >= 0;  -- every notification is sent

  PERFORM horsies_notify_finished(p_wanted.channel, v_cancelled);

  IF v_ordered IS NOT NULL AND horsies_unfold(v_ordered, v_now) > 0 THEN
    earliest := '-infinity';
  END IF;
END
$$;
