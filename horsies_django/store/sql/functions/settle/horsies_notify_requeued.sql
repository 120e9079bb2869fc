-- Notifies workers that tasks are waiting again, possibly before their scan cursors: their next scans include them, but no worker wakes.
-- Tasks that are not pending are left out. Returns the earliest due time of the others.
-- Locks: none (the commit takes PostgreSQL's own NOTIFY lock). Index: primary key.
CREATE FUNCTION horsies_notify_requeued(p_channel text, p_ids uuid[]) RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_back record;
  v_earliest timestamptz;
BEGIN
  IF p_ids IS NULL OR p_ids = '{}' THEN
    RETURN NULL;
  END IF;
  FOR v_back IN
    SELECT t.queue_name, min(t.enqueued_at) AS earliest FROM horsies_tasks t
    WHERE t.id = ANY (p_ids) AND t.status = 'PENDING' GROUP BY t.queue_name
  LOOP
    PERFORM pg_notify(p_channel || '_new', extract(epoch FROM v_back.earliest) || ' behind ' || v_back.queue_name);
    v_earliest := least(v_earliest, v_back.earliest);
  END LOOP;
  RETURN v_earliest;
END
$$;
