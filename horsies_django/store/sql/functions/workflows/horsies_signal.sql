-- Sends a signal to a run: inserts a row, without the lock of the run, and tells workers to advance it. The caller checks that the data has
-- the type that a node wants: unless p_look is 0, nothing is inserted if all of the nodes that can take the signal want types, of which
-- p_look nodes with its key and without one are looked at, NULL: all.
-- verdict: 'SENT'; 'TYPED' (names: the types that are wanted); 'ENDED' (the run); 'UNKNOWN' (no node waits for the name; names: those there
-- are); 'GATE' (a gate has it); 'FINISHED' (all nodes of the name have, and no running task added one, which may add another); NULL: no such run.
-- Locks: none but the new row. Index: primary key, horsies_workflow_nodes_signal.
CREATE OR REPLACE FUNCTION horsies_signal(p_workflow uuid, p_name text, p_key text, p_data jsonb, p_actor text, p_look int, p_now timestamptz,
                               OUT verdict text, OUT names text[]) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  SELECT CASE WHEN w.finished_at IS NULL THEN 'SENT' ELSE 'ENDED' END INTO verdict FROM horsies_workflows w WHERE w.id = p_workflow;
  IF verdict IS DISTINCT FROM 'SENT' THEN
    RETURN;
  ELSIF NOT EXISTS (SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.signal = p_name AND n.kind <> 'gate') THEN
    verdict := CASE WHEN EXISTS (SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.signal = p_name)
                 THEN 'GATE' ELSE 'UNKNOWN' END;
    names := ARRAY(SELECT DISTINCT n.signal::text FROM horsies_workflow_nodes n
                   WHERE n.workflow_id = p_workflow AND n.signal IS NOT NULL AND n.kind <> 'gate' ORDER BY 1 LIMIT 20);
  ELSIF NOT EXISTS (
    SELECT FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_workflow AND n.signal = p_name AND n.kind <> 'gate'
      AND n.status IN ('ADDED', 'PENDING', 'READY', 'WAITING')) AND NOT EXISTS (
    SELECT FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_workflow AND n.signal = p_name AND n.kind <> 'gate' AND n.added_by >= 0) THEN
    verdict := 'FINISHED';
  ELSE
    names := ARRAY(
      SELECT DISTINCT coalesce(t.signal_type, '') FROM (
        (SELECT n.signal_type FROM horsies_workflow_nodes n
         WHERE n.workflow_id = p_workflow AND n.signal = p_name AND n.kind <> 'gate' AND n.signal_key IS NULL
           AND n.status IN ('ADDED', 'PENDING', 'READY', 'WAITING') LIMIT p_look)
        UNION ALL
        (SELECT n.signal_type FROM horsies_workflow_nodes n
         WHERE n.workflow_id = p_workflow AND n.signal = p_name AND n.kind <> 'gate' AND n.signal_key = p_key
           AND n.status IN ('ADDED', 'PENDING', 'READY', 'WAITING') LIMIT p_look)) AS t);
    IF names <> '{}' AND '' <> ALL (names) THEN
      verdict := 'TYPED';
      RETURN;
    END IF;
    INSERT INTO horsies_workflow_signals (id, workflow_id, name, key, data, actor, sent_at)
    VALUES (horsies_uuid7(0), p_workflow, p_name, p_key, p_data, p_actor, coalesce(p_now, clock_timestamp()));
    PERFORM pg_notify(horsies_channel() || '_new', 'advance ' || p_workflow);
  END IF;
END
$$;
