-- Moves a run on after some of its nodes became final: counts them at their downstream nodes, acts
-- on failures as on_error says, sends the tasks of ready nodes, and ends the run if it is done.
-- After 20 ms it sends no more tasks, and begins no more waits, which end at once if their signals
-- are there; but it does some.
-- Of most other work it does a part (v_part): it ends, withdraws or releases nodes and tasks,
-- decides about nodes, or does part of a retry. During a retry it sends nothing and decides about
-- no node. owed_at says that something is left.
--
-- Args: p_moved has the nodes that became final. p_limit is the largest number of tasks to send.
-- Returns: many is the number of tasks that were sent; more is true if something is left; finished
-- is true if the run has ended; parent is its parent run. halted is 'stop' or 'pause' if a failure
-- made on_error act now, 'continued' if the successor of the run has begun, and 'retry' if the runs
-- of its nodes are retried.
-- Moves: nodes as horsies_propagate, horsies_retry_part, horsies_end_nodes, horsies_withdraw and
-- horsies_promote; the run RUNNING -> PAUSED, else as horsies_continue_run and
-- horsies_finish_run.
-- Locks: as horsies_retry_part, horsies_end_nodes, horsies_withdraw, horsies_unhold and
-- horsies_promote; the caller holds the lock of the run.
-- Index: primary keys, horsies_workflow_nodes_open.
CREATE OR REPLACE FUNCTION horsies_move_run(
  p_workflow uuid, p_moved bigint[], p_limit int, p_max_bytes int, p_channel text,
  p_now timestamptz,
  OUT many int, OUT more boolean, OUT finished boolean, OUT parent uuid, OUT halted text
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_until timestamptz;
  v_some boolean := false;
  v_run horsies_workflows;
  v_moved bigint[] := p_moved;
  -- nodes, and tasks, that are ended, withdrawn, decided about or run again here
  v_part CONSTANT int := 1000;
  v_room int := v_part;  -- for nodes that are skipped, or admitted
  v_told record;
  v_retried record;
  v_ending boolean;
  v_owed boolean;
  v_held boolean;
  v_ended record;
  v_failed record;
  v_sent record;
  v_end text;
BEGIN
  many := 0;
  more := false;

  SELECT w.* INTO v_run FROM horsies_workflows w WHERE w.id = p_workflow;
  parent := v_run.parent_id;
  v_owed := v_run.owed_at IS NOT NULL;

  LOOP
    v_ending := v_run.finished_at IS NOT NULL
      OR v_run.status = 'COMPENSATING'
      OR v_run.on_error = 'stop' AND v_run.error_code IS NOT NULL;

    IF v_run.retrying IS NOT NULL THEN
      v_retried := horsies_retry_part(v_run, v_moved, v_part, v_now);
      v_run.retrying := v_retried.retrying;
      v_moved := '{}';
      halted := CASE WHEN v_retried.begun THEN 'retry' ELSE halted END;
    END IF;

    IF v_run.retrying IS NULL THEN
      v_told := horsies_propagate(p_workflow, v_moved, v_ending, v_room, v_now);
      v_room := greatest(v_room - v_told.many, 0);
      v_owed := v_owed OR v_ending AND v_told.many > 0;

      IF v_run.status IN ('RUNNING', 'PAUSED')
        AND v_run.error_code IS NULL
        AND (v_told.failed OR v_told.refused)
      THEN
        SELECT
          min(failed_node.number) AS number,
          min(coalesce(failed_node.error_code, failed_node.status)) AS code,
          bool_or(NOT EXISTS (
            SELECT FROM horsies_downstream(p_workflow, failed_node.number) AS downstream_node
            WHERE downstream_node.rule = 'quorum'
              OR downstream_node.rule = 'all' AND downstream_node.allow_failed
          )) AS fatal
        INTO v_failed
        FROM unnest(v_moved) AS moved (number)
        CROSS JOIN LATERAL (
          SELECT node.number, node.status, node.error_code
          FROM horsies_workflow_nodes node
          WHERE node.workflow_id = p_workflow AND node.number = moved.number
          OFFSET 0
        ) AS failed_node
        WHERE failed_node.status IN ('FAILED', 'CANCELLED', 'EXPIRED');

        v_moved := '{}';
        v_run.error_node := coalesce(v_run.error_node, v_failed.number);

        IF v_failed.fatal OR v_told.refused THEN
          v_run.error_code := coalesce(v_failed.code, 'QUORUM_NOT_MET');
          IF v_run.on_error = 'stop' OR v_run.on_error = 'pause' AND v_run.status = 'RUNNING' THEN
            halted := v_run.on_error;
            v_run.status := CASE halted WHEN 'pause' THEN 'PAUSED' ELSE v_run.status END;
            v_owed := true;
          END IF;
        END IF;

        UPDATE horsies_workflows w
        SET
          status = v_run.status,
          error_node = v_run.error_node,
          error_code = v_run.error_code
        WHERE w.id = p_workflow;

        CONTINUE;
      END IF;
    END IF;

    v_moved := '{}';

    IF v_ending AND v_owed AND v_run.retrying IS NULL THEN
      v_ended := horsies_end_nodes(v_run, v_part, p_channel, v_now);
      IF v_run.finished_at IS NULL THEN
        v_room := greatest(
          v_room - (horsies_propagate(p_workflow, v_ended.moved, v_ending, v_room, v_now)).many,
          0);
      END IF;
      v_owed := v_ended.more;
    ELSIF v_run.status = 'PAUSED' AND v_owed THEN
      v_owed := horsies_withdraw(p_workflow, NULL, v_part) = v_part;
    END IF;

    v_held := v_run.resuming AND v_run.status = 'RUNNING' AND NOT v_ending;
    IF v_held THEN
      v_held := horsies_unhold(p_workflow, v_part, p_channel);
      v_run.resuming := v_held;
      UPDATE horsies_workflows w SET resuming = v_held WHERE w.id = p_workflow;
    END IF;

    more := v_held
      OR v_owed AND (v_ending OR v_run.status = 'PAUSED')
      OR v_run.retrying IS NOT NULL
      OR v_room = 0 AND EXISTS (
        SELECT FROM horsies_workflow_nodes n
        WHERE n.workflow_id = p_workflow AND n.status = 'ADDED'
      );

    IF v_run.status IN ('RUNNING', 'COMPENSATING') AND NOT more THEN
      v_sent := horsies_promote(
        v_run,
        CASE WHEN v_some AND clock_timestamp() > v_until THEN 0 ELSE p_limit - many END,
        p_max_bytes, p_channel, p_now);
      v_until := coalesce(v_until, clock_timestamp() + interval '20 ms');
      many := many + v_sent.many;
      more := v_sent.more;
      v_moved := v_sent.moved;
      v_some := v_some OR many > 0 OR v_moved <> '{}';

      IF v_sent.continued THEN
        halted := 'continued';
        SELECT w.* INTO v_run FROM horsies_workflows w WHERE w.id = p_workflow;
        v_owed := true;
      END IF;
    END IF;

    IF v_moved = '{}' THEN
      v_end := CASE
        WHEN many = 0 OR halted IS NOT NULL
        THEN horsies_finish_run(p_workflow, p_channel, p_max_bytes, v_now)
        ELSE 'OPEN'  -- what was just sent
      END;
      EXIT WHEN v_end <> 'UNDOING';

      SELECT w.* INTO v_run FROM horsies_workflows w WHERE w.id = p_workflow;
    END IF;
  END LOOP;

  finished := v_end = 'FINISHED';

  IF more <> (v_run.owed_at IS NOT NULL) THEN
    UPDATE horsies_workflows w
    SET owed_at = CASE WHEN more THEN v_now END
    WHERE w.id = p_workflow;
  END IF;
END
$$;
