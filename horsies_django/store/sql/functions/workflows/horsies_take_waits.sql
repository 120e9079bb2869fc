-- Ends waits of a run: gives new signals to the nodes that wait for them, then ends the waits whose
-- time is over, as their on_timeout defines.
-- A signal goes to the first node that waits for its name, with its key or for any; if none does,
-- it is kept for a later one. A wait that was over when the signal was sent does not take it. A
-- wait whose time is over goes on while a signal of its name and key that was sent in time has not
-- been seen.
-- Returns: moved has the nodes that are final now. more is whether p_many signals or p_many
-- timeouts were taken; others may be left.
-- Moves: WAITING -> COMPLETED, FAILED, SKIPPED.
-- Locks: rows of signals; the caller holds the lock of the run.
-- Index: horsies_signals_unseen, horsies_signals_unused, horsies_signals_keyed,
-- horsies_workflow_nodes_signal, horsies_workflow_nodes_waits.
CREATE OR REPLACE FUNCTION horsies_take_waits(
  p_workflow uuid, p_many int, p_now timestamptz, OUT moved bigint[], OUT more boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_unseen uuid[] := '{}';
  v_due bigint[];
  v_signal record;
  v_number bigint;
BEGIN
  moved := '{}';

  FOR v_signal IN
    SELECT s.id, s.name, s.key, s.sent_at
    FROM horsies_workflow_signals s
    WHERE s.workflow_id = p_workflow AND s.seen_at IS NULL
    ORDER BY s.sent_at, s.id
    LIMIT p_many
  LOOP
    v_unseen := v_unseen || v_signal.id;

    -- One look per key: among many nodes with keys, neither reads those of the others.
    SELECT w.number
    INTO v_number
    FROM (
      (
        SELECT n.number
        FROM horsies_workflow_nodes n
        WHERE n.workflow_id = p_workflow
          AND n.signal = v_signal.name
          AND n.status = 'WAITING'
          AND n.signal_key IS NULL
          AND n.kind <> 'gate'
          AND (n.due_at IS NULL OR n.due_at > v_signal.sent_at)
        ORDER BY n.signal_key, n.number
        LIMIT 1
      )
      UNION ALL
      (
        SELECT n.number
        FROM horsies_workflow_nodes n
        WHERE n.workflow_id = p_workflow
          AND n.signal = v_signal.name
          AND n.status = 'WAITING'
          AND n.signal_key = v_signal.key
          AND n.kind <> 'gate'
          AND (n.due_at IS NULL OR n.due_at > v_signal.sent_at)
        ORDER BY n.number
        LIMIT 1
      )
    ) AS w
    ORDER BY w.number
    LIMIT 1;

    IF FOUND AND horsies_give_signal(p_workflow, v_number, v_signal.id, p_now) THEN
      moved := moved || v_number;
    END IF;
  END LOOP;

  IF v_unseen <> '{}' THEN
    UPDATE horsies_workflow_signals s
    SET seen_at = p_now
    WHERE s.id = ANY (v_unseen) AND s.seen_at IS NULL;
  END IF;

  v_due := ARRAY(
    SELECT d.number
    FROM (
      SELECT n.number, n.kind, n.signal, n.signal_key, n.due_at
      FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_workflow
        AND n.status = 'WAITING'
        AND n.is_wait
        AND n.finished_at IS NULL
        AND n.due_at <= p_now
      ORDER BY n.due_at
      LIMIT p_many
    ) AS d
    WHERE d.signal IS NULL
      OR d.kind = 'gate'
      OR cardinality(v_unseen) < p_many
      OR NOT EXISTS (
        SELECT FROM horsies_next_signal(p_workflow, d.signal, d.signal_key, true) AS s
        WHERE s.sent_at < d.due_at
      )
    ORDER BY d.due_at
  );

  IF v_due <> '{}' THEN
    UPDATE horsies_workflow_nodes n
    SET finished_at = p_now,
        value = CASE WHEN n.on_timeout = 'complete' THEN 'null'::jsonb END,
        status = CASE n.on_timeout
          WHEN 'complete' THEN 'COMPLETED'
          WHEN 'skip' THEN 'SKIPPED'
          ELSE 'FAILED'
        END,
        error_code = CASE WHEN n.on_timeout <> 'complete' THEN 'WAIT_TIMED_OUT' END,
        error = CASE
          WHEN n.on_timeout <> 'complete' THEN
            CASE
              WHEN n.kind = 'gate' THEN 'nobody decided in time'
              WHEN n.items_ok > 0
                THEN format('%s of %s signals %L came in time', n.items_ok, n.total, n.signal)
              ELSE format('no signal %L came in time', n.signal)
            END
        END
    FROM unnest(v_due) AS d (number)
    CROSS JOIN LATERAL horsies_address(p_workflow, d.number) AS a
    WHERE n.ctid = a.address;

    moved := moved || v_due;
  END IF;

  more := cardinality(v_unseen) = p_many OR cardinality(v_due) = p_many;
END
$$;
