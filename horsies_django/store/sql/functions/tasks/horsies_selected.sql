-- Returns tasks outside of workflow runs that have all the given attributes (NULL: any), in the
-- order of the index that has the tasks of p_status; CLAIMED and RUNNING ones in the order of their
-- ids. It has custom plans, so that only the branch of the status is planned.
--
-- Args: p_status: a status, 'UNSUCCESSFUL' for FAILED, CANCELLED and EXPIRED, or 'FINISHED' for any
--     that is final.
--   p_site, p_exception: those of the last attempt, '(none)' for an attempt that has none.
--   p_since, p_until: the bounds of finished_at for a final status, else of sent_at.
--   p_after: where to begin, as "after" of the last call; NULL: at the beginning.
--   p_many: the most tasks that are returned.
--   p_read: the most entries of the index that are read.
-- Returns: the tasks; then a row that has no id, but after: where the index goes on, behind the
--   last entry that was read; NULL if everything was read.
-- Index: horsies_tasks_unsuccessful, horsies_tasks_finished, horsies_tasks_claim,
--   horsies_tasks_parked, horsies_tasks_holding.
CREATE OR REPLACE FUNCTION horsies_selected(
  p_status text, p_queue text, p_names text[], p_code text, p_site text, p_worker uuid,
  p_partition text, p_since timestamptz, p_until timestamptz, p_exception text, p_after jsonb,
  p_many int, p_read int
) RETURNS TABLE (id uuid, task_name text, error_code text, after jsonb) LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_custom_plan AS $$
DECLARE
  c_kind CONSTANT text := CASE
    WHEN p_status IN ('FAILED', 'CANCELLED', 'EXPIRED', 'UNSUCCESSFUL') THEN 'unsuccessful'
    WHEN p_status IN ('COMPLETED', 'FINISHED') THEN 'finished'
    WHEN p_status IN ('CLAIMED', 'RUNNING') THEN 'holding'
    WHEN p_after ->> 0 = 'parked' THEN 'parked'
    ELSE 'claim'
  END;
  v_at timestamptz := CASE
    WHEN c_kind IN ('unsuccessful', 'finished') THEN
      greatest((p_after ->> 1)::timestamptz, p_since)
    END;
  v_id uuid := p_after ->> -1;
BEGIN
  RETURN QUERY
  WITH entry AS MATERIALIZED (
    (
      SELECT
        task.id, task.task_name, task.error_code, task.status, task.queue_name, task.claimed_by,
        task.partition_key, task.workflow_id, task.finished_at AS at
      FROM horsies_tasks task
      WHERE c_kind = 'unsuccessful'
        AND task.error_code IS NOT NULL
        AND task.finished_at IS NOT NULL
        AND task.finished_at <= p_until
        AND (v_at IS NULL OR task.finished_at >= v_at)
        AND (p_after IS NULL OR (task.finished_at, task.id) > ((p_after ->> 1)::timestamptz, v_id))
      ORDER BY task.finished_at, task.id
      LIMIT p_read
    )
    UNION ALL
    (
      SELECT
        task.id, task.task_name, task.error_code, task.status, task.queue_name, task.claimed_by,
        task.partition_key, task.workflow_id, task.finished_at
      FROM horsies_tasks task
      WHERE c_kind = 'finished'
        AND task.finished_at IS NOT NULL
        AND task.finished_at <= p_until
        AND (v_at IS NULL OR task.finished_at >= v_at)
        AND (p_after IS NULL OR (task.finished_at, task.id) > ((p_after ->> 1)::timestamptz, v_id))
      ORDER BY task.finished_at, task.id
      LIMIT p_read
    )
    UNION ALL
    (
      SELECT
        task.id, task.task_name, task.error_code, task.status, task.queue_name, task.claimed_by,
        task.partition_key, task.workflow_id, task.sent_at
      FROM horsies_tasks task
      WHERE c_kind = 'claim'
        AND task.claimed_by IS NULL
        AND task.finished_at IS NULL
        AND NOT task.parked
        AND (p_queue IS NULL OR task.queue_name = p_queue)
        AND (
          p_after IS NULL
          OR (task.queue_name, task.lane, task.priority, task.enqueued_at, task.id) > (
            p_after ->> 1, p_after ->> 2, (p_after ->> 3)::smallint,
            (p_after ->> 4)::timestamptz, v_id
          )
        )
      ORDER BY task.queue_name, task.lane, task.priority, task.enqueued_at, task.id
      LIMIT p_read
    )
    UNION ALL
    (
      SELECT
        task.id, task.task_name, task.error_code, task.status, task.queue_name, task.claimed_by,
        task.partition_key, task.workflow_id, task.sent_at
      FROM horsies_tasks task
      WHERE c_kind = 'parked'
        AND task.claimed_by IS NULL
        AND task.finished_at IS NULL
        AND task.parked
        AND (p_queue IS NULL OR task.queue_name = p_queue)
        AND (
          v_id IS NULL
          OR (
            task.queue_name, task.partition_key, task.lane, task.priority, task.enqueued_at, task.id
          ) > (
            p_after ->> 1, p_after ->> 2, p_after ->> 3, (p_after ->> 4)::smallint,
            (p_after ->> 5)::timestamptz, v_id
          )
        )
      ORDER BY
        task.queue_name, task.partition_key, task.lane, task.priority, task.enqueued_at, task.id
      LIMIT p_read
    )
    UNION ALL
    (  -- as many as there are slots
      SELECT
        task.id, task.task_name, task.error_code, task.status, task.queue_name, task.claimed_by,
        task.partition_key, task.workflow_id, task.sent_at
      FROM horsies_tasks task
      WHERE c_kind = 'holding'
        AND task.claimed_by IS NOT NULL
        AND task.finished_at IS NULL
        AND (p_after IS NULL OR task.id > v_id)
      ORDER BY task.id
      LIMIT p_read
    )
  ),
  fitting AS MATERIALIZED (
    SELECT found.id, found.task_name, found.error_code
    FROM entry found
    WHERE (p_status IN (found.status, 'UNSUCCESSFUL', 'FINISHED'))
      AND (p_queue IS NULL OR found.queue_name = p_queue)
      AND (p_names IS NULL OR found.task_name = ANY (p_names))
      AND (p_code IS NULL OR found.error_code = p_code)
      AND (p_worker IS NULL OR found.claimed_by = p_worker)
      AND (p_partition IS NULL OR found.partition_key = p_partition)
      AND (p_since IS NULL OR found.at >= p_since)
      AND found.at <= p_until
      AND found.workflow_id IS NULL
      AND (
        p_site IS NULL AND p_exception IS NULL
        OR EXISTS (
          SELECT
          FROM horsies_task_attempts last_attempt
          WHERE last_attempt.task_id = found.id
            AND last_attempt.finished_at = found.at
            AND (p_site IS NULL OR last_attempt.site IS NOT DISTINCT FROM nullif(p_site, '(none)'))
            AND (
              p_exception IS NULL
              OR last_attempt.exception_class IS NOT DISTINCT FROM nullif(p_exception, '(none)')
            )
        )
      )
    LIMIT p_many
  )
  SELECT selected.id, selected.task_name::text, selected.error_code::text, NULL::jsonb
  FROM fitting selected
  UNION ALL
  SELECT
    NULL,
    NULL,
    NULL,
    (
      SELECT
        CASE c_kind
          WHEN 'claim' THEN
            jsonb_build_array(
              c_kind, last_task.queue_name, last_task.lane, last_task.priority,
              last_task.enqueued_at, last_task.id
            )
          WHEN 'parked' THEN
            jsonb_build_array(
              c_kind, last_task.queue_name, last_task.partition_key, last_task.lane,
              last_task.priority, last_task.enqueued_at, last_task.id
            )
          WHEN 'holding' THEN jsonb_build_array(c_kind, last_task.id)
          ELSE jsonb_build_array(c_kind, last_task.finished_at, last_task.id)
        END
      FROM horsies_tasks last_task
      WHERE last_task.id = last.id
      UNION ALL
      SELECT '["parked", null]'
      WHERE last.id IS NULL AND c_kind = 'claim'
    )
  FROM (
    SELECT
      CASE
        WHEN (SELECT count(*) FROM fitting) >= p_many THEN
          (SELECT selected.id FROM fitting selected OFFSET p_many - 1)
        WHEN (SELECT count(*) FROM entry) >= p_read THEN
          (SELECT found.id FROM entry found OFFSET p_read - 1)
      END AS id
  ) AS last;
END
$$;
