-- Notifies processes that wait for results, if there are any, of the tasks that have finished.
-- Locks: none (the commit takes PostgreSQL's own NOTIFY lock).
CREATE OR REPLACE FUNCTION horsies_notify_finished(p_channel text, p_ids uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  c_most CONSTANT int := 200;  -- ids of 36 characters fit into the 8,000 bytes of a payload
  v_sent text;  -- PERFORM would run a statement
BEGIN
  IF EXISTS (SELECT FROM horsies_waiters w WHERE w.expires_at > clock_timestamp()) THEN
    FOR i IN 1 .. cardinality(p_ids) BY c_most LOOP
      v_sent := pg_notify(
        p_channel || '_done', array_to_string(p_ids[i : i + c_most - 1], ' '));
    END LOOP;
  END IF;
END
$$;
