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
      SELECT * FROM jsonb_to_recordset(p_claims) AS entry (id uuid, generation int)
    ),
    held AS MATERIALIZED (
      SELECT task.id, task.claim_generation
      FROM horsies_tasks task
      WHERE task.id = ANY (ARRAY(SELECT claim.id FROM claim))
        AND task.claimed_by = p_wanted.worker
        AND task.status IN ('CLAIMED', 'RUNNING')
      FOR NO KEY UPDATE SKIP LOCKED
    )
    SELECT coalesce(array_agg(held_task.id), '{}')
    INTO v_ids
    FROM held held_task
    JOIN claim given_claim
      ON given_claim.id = held_task.id AND given_claim.generation = held_task.claim_generation;

    missed := ARRAY(
      SELECT c.id FROM jsonb_to_recordset(p_claims) AS c (id uuid) WHERE c.id <> ALL (v_ids));
  END IF;

  WITH released AS (  -- their rows are locked by now, behind the fence
    UPDATE horsies_tasks task
    SET
      status = CASE WHEN task.cancel_requested_at IS NULL THEN 'PENDING' ELSE 'CANCELLED' END,
      finished_at = CASE WHEN task.cancel_requested_at IS NOT NULL THEN v_now END,
      error_code = CASE WHEN task.cancel_requested_at IS NOT NULL THEN 'TASK_CANCELLED' END,
      result = CASE WHEN task.cancel_requested_at IS NOT NULL
        THEN horsies_error_result('TASK_CANCELLED', 'the task was cancelled before it started')
      END,
      claimed_by = NULL,
      claimed_at = NULL,
      claim_expires_at = NULL,
      started_at = NULL
    WHERE task.id = ANY (v_ids) AND task.status IN ('CLAIMED', 'RUNNING')
    RETURNING
      task.id, task.queue_name, task.partition_key, task.finished_at, task.enqueued_at, task.ordered
  ),
  notified AS (
    SELECT pg_notify(
      p_wanted.channel || '_new',
      extract(epoch FROM min(released_task.enqueued_at))
        || CASE WHEN p_wakes THEN ' ' ELSE ' behind ' END
        || released_task.queue_name)
    FROM released released_task
    WHERE released_task.finished_at IS NULL
    GROUP BY released_task.queue_name
  )
  SELECT
    coalesce(array_agg(released_task.queue_name::text), '{}'),
    coalesce(array_agg(released_task.partition_key), '{}'),
    coalesce(
      array_agg(released_task.id) FILTER (WHERE released_task.finished_at IS NOT NULL), '{}'),
    min(released_task.enqueued_at) FILTER (WHERE released_task.finished_at IS NULL),
    array_agg(released_task.id) FILTER (WHERE released_task.ordered)
  INTO queues, keys, v_cancelled, earliest, v_ordered
  FROM released released_task
  WHERE (SELECT count(*) FROM notified) >= 0;  -- every notification is sent

  PERFORM horsies_notify_finished(p_wanted.channel, v_cancelled);

  IF v_ordered IS NOT NULL AND horsies_unfold(v_ordered, v_now) > 0 THEN
    earliest := '-infinity';
  END IF;
END
$$;
