-- Sends a signal to a run: inserts a row, without the lock of the run, and notifies workers, which
-- advance the run. The caller checks that the data has the type that a node wants. So nothing is
-- inserted, unless p_look is 0, if all of the nodes that can take the signal want types.
-- Args: p_look is the maximum of nodes with its key, and of nodes without one, whose types are
-- looked at; NULL for all.
-- Returns: verdict, NULL if there is no such run:
--   'SENT';
--   'TYPED': names are the types that are wanted;
--   'ENDED': the run has ended;
--   'UNKNOWN': no node waits for the name; names are those for which nodes wait, at most 20;
--   'GATE': a gate has the name; names as for 'UNKNOWN';
--   'FINISHED': all nodes of the name have finished, and none of them was added by a running task,
--   which may add another.
-- Locks: none but the new row.
-- Index: primary key, horsies_workflow_nodes_signal.
CREATE OR REPLACE FUNCTION horsies_signal(
  p_workflow uuid, p_name text, p_key text, p_data jsonb, p_actor text, p_look int,
  p_now timestamptz, OUT verdict text, OUT names text[]
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  SELECT CASE WHEN w.finished_at IS NULL THEN 'SENT' ELSE 'ENDED' END
  INTO verdict
  FROM horsies_workflows w
  WHERE w.id = p_workflow;

  IF verdict IS DISTINCT FROM 'SENT' THEN
    RETURN;
  ELSIF NOT EXISTS (
    SELECT FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_workflow AND n.signal = p_name AND n.kind <> 'gate'
  ) THEN
    verdict := CASE
      WHEN EXISTS (
        SELECT FROM horsies_workflow_nodes n
        WHERE n.workflow_id = p_workflow AND n.signal = p_name
      ) THEN 'GATE'
      ELSE 'UNKNOWN'
    END;
    names := ARRAY(
      SELECT DISTINCT n.signal::text
      FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_workflow AND n.signal IS NOT NULL AND n.kind <> 'gate'
      ORDER BY 1
      LIMIT 20
    );
  ELSIF NOT EXISTS (
    SELECT FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_workflow
      AND n.signal = p_name
      AND n.kind <> 'gate'
      AND n.status IN ('ADDED', 'PENDING', 'READY', 'WAITING')
  ) AND NOT EXISTS (
    SELECT FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_workflow
      AND n.signal = p_name
      AND n.kind <> 'gate'
      AND n.added_by >= 0
  ) THEN
    verdict := 'FINISHED';
  ELSE
    names := ARRAY(
      SELECT DISTINCT coalesce(t.signal_type, '')
      FROM (
        (
          SELECT n.signal_type
          FROM horsies_workflow_nodes n
          WHERE n.workflow_id = p_workflow
            AND n.signal = p_name
            AND n.kind <> 'gate'
            AND n.signal_key IS NULL
            AND n.status IN ('ADDED', 'PENDING', 'READY', 'WAITING')
          LIMIT p_look
        )
        UNION ALL
        (
          SELECT n.signal_type
          FROM horsies_workflow_nodes n
          WHERE n.workflow_id = p_workflow
            AND n.signal = p_name
            AND n.kind <> 'gate'
            AND n.signal_key = p_key
            AND n.status IN ('ADDED', 'PENDING', 'READY', 'WAITING')
          LIMIT p_look
        )
      ) AS t
    );
    IF names <> '{}' AND '' <> ALL (names) THEN
      verdict := 'TYPED';
      RETURN;
    END IF;

    INSERT INTO horsies_workflow_signals (id, workflow_id, name, key, data, actor, sent_at)
    VALUES (
      horsies_uuid7(0), p_workflow, p_name, p_key, p_data, p_actor,
      coalesce(p_now, clock_timestamp()));

    PERFORM pg_notify(horsies_channel() || '_new', 'advance ' || p_workflow);
  END IF;
END
$$;
