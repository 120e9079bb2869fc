-- Sends the first tasks of a run that the caller has just created; workers send the rest.
-- In a SERIALIZABLE transaction a worker sends all of them, as soon as the transaction commits: a
-- transaction that reads new nodes, which stand in the indexes beside those of other new runs,
-- makes others that send fail with 40001.
--
-- Args: p_limit is the largest number of tasks to send.
-- Moves: as horsies_move_run.
-- Locks: the row of the run.
-- Index: primary keys, horsies_workflow_nodes_open.
CREATE OR REPLACE FUNCTION horsies_begin_run(
  p_workflow uuid, p_limit int, p_max_bytes int, p_channel text, p_now timestamptz
) RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  IF current_setting('transaction_isolation') = 'serializable' THEN
    PERFORM pg_notify(p_channel || '_new', 'advance ' || p_workflow);
  ELSE
    PERFORM horsies_move_run(
      p_workflow,
      ARRAY(
        SELECT n.number
        FROM horsies_workflow_nodes n
        WHERE n.workflow_id = p_workflow AND n.kind = 'input'
      ),
      p_limit, p_max_bytes, p_channel, p_now);
  END IF;
END
$$;
