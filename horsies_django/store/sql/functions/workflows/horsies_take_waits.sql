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
    SELECT candidate.number
    INTO v_number
    FROM (
      (
        SELECT waiter.number
        FROM horsies_workflow_nodes waiter
        WHERE waiter.workflow_id = p_workflow
          AND waiter.signal = v_signal.name
          AND waiter.status = 'WAITING'
          AND waiter.signal_key IS NULL
          AND waiter.kind <> 'gate'
          AND (waiter.due_at IS NULL OR waiter.due_at > v_signal.sent_at)
        ORDER BY waiter.signal_key, waiter.number
        LIMIT 1
      )
      UNION ALL
      (
        SELECT keyed_waiter.number
        FROM horsies_workflow_nodes keyed_waiter
        WHERE keyed_waiter.workflow_id = p_workflow
          AND keyed_waiter.signal = v_signal.name
          AND keyed_waiter.status = 'WAITING'
          AND keyed_waiter.signal_key = v_signal.key
          AND keyed_waiter.kind <> 'gate'
          AND (keyed_waiter.due_at IS NULL OR keyed_waiter.due_at > v_signal.sent_at)
        ORDER BY keyed_waiter.number
        LIMIT 1
      )
    ) AS candidate
    ORDER BY candidate.number
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
    SELECT due_wait.number
    FROM (
      SELECT waiter.number, waiter.kind, waiter.signal, waiter.signal_key, waiter.due_at
      FROM horsies_workflow_nodes waiter
      WHERE waiter.workflow_id = p_workflow
        AND waiter.status = 'WAITING'
        AND waiter.is_wait
        AND waiter.finished_at IS NULL
        AND waiter.due_at <= p_now
      ORDER BY waiter.due_at
      LIMIT p_many
    ) AS due_wait
    WHERE due_wait.signal IS NULL
      OR due_wait.kind = 'gate'
      OR cardinality(v_unseen) < p_many
      OR NOT EXISTS (
        SELECT
        FROM horsies_next_signal(
          p_workflow, due_wait.signal, due_wait.signal_key, true
        ) AS next_signal
        WHERE next_signal.sent_at < due_wait.due_at
      )
    ORDER BY due_wait.due_at
  );

  IF v_due <> '{}' THEN
    UPDATE horsies_workflow_nodes waiter
    SET finished_at = p_now,
        value = CASE WHEN waiter.on_timeout = 'complete' THEN 'null'::jsonb END,
        status = CASE waiter.on_timeout
          WHEN 'complete' THEN 'COMPLETED'
          WHEN 'skip' THEN 'SKIPPED'
          ELSE 'FAILED'
        END,
        error_code = CASE WHEN waiter.on_timeout <> 'complete' THEN 'WAIT_TIMED_OUT' END,
        error = CASE
          WHEN waiter.on_timeout <> 'complete' THEN
            CASE
              WHEN waiter.kind = 'gate' THEN 'nobody decided in time'
              WHEN waiter.items_ok > 0
                THEN format(
                  '%s of %s signals %L came in time',
                  waiter.items_ok, waiter.total, waiter.signal)
              ELSE format('no signal %L came in time', waiter.signal)
            END
        END
    FROM unnest(v_due) AS due_wait (number)
    CROSS JOIN LATERAL horsies_address(p_workflow, due_wait.number) AS node_row
    WHERE waiter.ctid = node_row.address;

    moved := moved || v_due;
  END IF;

  more := cardinality(v_unseen) = p_many OR cardinality(v_due) = p_many;
END
$$;
