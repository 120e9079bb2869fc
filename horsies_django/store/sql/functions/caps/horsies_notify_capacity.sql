-- Wakes other workers if permits of a cap became free that this worker did not use while tasks wait; nothing else would wake them.
-- Locks: none (the commit takes PostgreSQL's own NOTIFY lock). Index: horsies_tasks_claim.
CREATE FUNCTION horsies_notify_capacity(p_wanted horsies_wanted, p_caps horsies_caps, p_freed text[], p_used text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_limit horsies_limits;
  v_freed int;
BEGIN
  IF p_freed <@ p_used AND cardinality(p_freed) <= 1 THEN
    RETURN;  -- the common case under load: one permit, used again
  END IF;
  IF p_caps.cluster IS NOT NULL THEN  -- other workers' queues use the same permits
    IF cardinality(p_freed) > cardinality(p_used)
      AND horsies_count_due(ARRAY(SELECT l.queue_name::text FROM horsies_limits l WHERE l.queue_name <> '*'), '{sync,async}', 1,
                            p_wanted.cursors, p_wanted.behind) > 0
    THEN
      PERFORM pg_notify(p_wanted.channel || '_new', '0 *');
    END IF;
    RETURN;
  END IF;
  FOREACH v_limit IN ARRAY p_caps.queues LOOP
    IF v_limit.max_concurrency > 0 OR v_limit.partition_max_concurrency IS NOT NULL THEN
      v_freed := cardinality(array_positions(p_freed, v_limit.queue_name::text));
      IF v_freed > cardinality(array_positions(p_used, v_limit.queue_name::text))
        AND horsies_count_due(ARRAY[v_limit.queue_name], '{sync,async}', 1, p_wanted.cursors, p_wanted.behind) > 0
      THEN
        PERFORM pg_notify(p_wanted.channel || '_new', '0 ' || v_limit.queue_name);
      END IF;
    END IF;
  END LOOP;
END
$$;
