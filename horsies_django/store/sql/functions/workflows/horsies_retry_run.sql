-- Runs the failed nodes of a run again, and the nodes that were skipped because of them; keeps
-- completed nodes, and nodes that a person skipped. It waits for the lock of the run, decides
-- whether the run is retried, and does the first part; see horsies_retry_part.
-- Of a run that was compensated, the failed undos run again, once all have ended. They get edges
-- between one another where others between them are done, so that they keep their order.
-- Returns: verdict, NULL if there is no such run:
--   'RETRIED': also while a retry is under way;
--   'NOTHING': no node failed;
--   'STOPPING': tasks of this run or of one inside it still run since a cancel, or are still to be
--   cancelled;
--   'CHILD': the parent run is to be retried instead;
--   'UNDONE': the run was compensated, and no undo failed;
--   'UNDOING': the run is being compensated;
--   'CONTINUED': its successor is to be retried instead.
-- Moves: as horsies_begin_retry, or the run -> COMPENSATING, then as horsies_move_run.
-- Locks: the row of the run, then task rows.
-- Index: primary keys, horsies_workflow_nodes_open, horsies_workflows_parent.
CREATE OR REPLACE FUNCTION horsies_retry_run(
  p_workflow uuid, p_nested boolean, p_max_bytes int, p_channel text, p_now timestamptz,
  OUT verdict text
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz;
  v_run horsies_workflows;
  v_ending boolean;
  v_undos bigint[];  -- that failed; NULL: the run has no undos
BEGIN
  SELECT w.* INTO v_run
  FROM horsies_workflows w
  WHERE w.id = p_workflow
  FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;

  v_now := coalesce(p_now, clock_timestamp());

  IF v_run.parent_id IS NOT NULL AND v_run.finished_at IS NOT NULL AND NOT p_nested THEN
    verdict := 'CHILD';
  ELSIF v_run.retrying IS NOT NULL AND v_run.finished_at IS NULL THEN
    verdict := 'RETRIED';
  ELSE
    SELECT
      m.more
      AND (
        v_run.status = 'CANCELLED'
        OR v_run.on_error = 'stop' AND v_run.error_code IS NOT NULL
      )
    INTO v_ending
    FROM horsies_move_run(
      p_workflow, horsies_take_tasks(p_workflow, NULL, v_now), 1000, p_max_bytes, p_channel, p_now
    ) AS m;

    SELECT
      CASE
        WHEN count(*) > 0 THEN coalesce(
          array_agg(n.number) FILTER (WHERE n.status IN ('FAILED', 'CANCELLED', 'EXPIRED')),
          '{}')
      END
    INTO v_undos
    FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_workflow AND n.kind = 'undo';

    SELECT
      CASE
        WHEN w.continued_as IS NOT NULL THEN 'CONTINUED'
        WHEN w.status = 'COMPENSATING' THEN 'UNDOING'
        WHEN v_undos = '{}' THEN 'UNDONE'
      END
    INTO verdict
    FROM horsies_workflows w
    WHERE w.id = p_workflow;
  END IF;

  IF verdict IS NULL AND v_undos <> '{}' THEN
    INSERT INTO horsies_workflow_edges (workflow_id, upstream, downstream)
    -- again: this one failed, too; the search ends at it.
    WITH RECURSIVE reached (source, number, again) AS (
      SELECT failed_undo.number, failed_undo.number, false
      FROM unnest(v_undos) AS failed_undo (number)
      UNION
      SELECT
        reached_node.source,
        downstream_node.number,
        downstream_node.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
      FROM reached reached_node
      CROSS JOIN LATERAL horsies_downstream(p_workflow, reached_node.number) AS downstream_node
      WHERE NOT reached_node.again
    )
    SELECT p_workflow, reached_node.source, reached_node.number
    FROM reached reached_node
    WHERE reached_node.again
    ON CONFLICT DO NOTHING;

    UPDATE horsies_workflows w
    SET status = 'COMPENSATING',
        retrying = 0,
        finished_at = NULL,
        error_code = CASE
          WHEN w.result #>> '{err,data,node}' IS NULL THEN 'WORKFLOW_CANCELLED'
          ELSE w.result #>> '{err,data,error_code}'
        END,
        result = jsonb_build_object('err', w.result #> '{err,data,cause}')
    WHERE w.id = p_workflow;

    verdict := 'RETRIED';
  ELSIF verdict IS NULL
    AND v_run.status NOT IN ('CANCELLED', 'FAILED')
    AND NOT EXISTS (  -- a run whose value could not be given may have none
      SELECT FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_workflow AND n.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
    )
  THEN
    verdict := 'NOTHING';
  ELSIF verdict IS NULL AND (
    v_ending
    OR EXISTS (
      WITH RECURSIVE inside (id) AS (
        SELECT p_workflow
        UNION  -- not ALL: a circle, which others may write, ends
        SELECT child_run.id
        FROM inside inner_run
        CROSS JOIN LATERAL (  -- see horsies_downstream
          SELECT child_run.id
          FROM horsies_workflows child_run
          WHERE child_run.parent_id = inner_run.id AND child_run.status IN ('FAILED', 'CANCELLED')
          OFFSET 0
        ) AS child_run
      )
      SELECT
      FROM inside inner_run
      CROSS JOIN LATERAL (
        SELECT
        FROM horsies_workflows ended_run
        WHERE ended_run.id = inner_run.id AND ended_run.finished_at IS NOT NULL
        OFFSET 0
      ) AS ended_run
      CROSS JOIN LATERAL (
        SELECT
        FROM horsies_workflow_nodes open_node
        WHERE open_node.workflow_id = inner_run.id AND open_node.finished_at IS NULL
        LIMIT 1
      ) AS open_node
    )
  ) THEN
    verdict := 'STOPPING';
  ELSIF verdict IS NULL THEN
    PERFORM horsies_begin_retry(ARRAY[p_workflow], v_now);
    verdict := 'RETRIED';
  END IF;

  IF verdict = 'RETRIED' THEN
    PERFORM horsies_move_run(p_workflow, '{}', 1000, p_max_bytes, p_channel, p_now);
  END IF;
END
$$;
