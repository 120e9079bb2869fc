-- Wake other workers where permits of a cap came free, this worker did not use them all, and tasks wait: nobody else would know.
-- p_marks, p_behind: where tasks can be, see horsies_gather.
-- Locks: none (the commit takes PostgreSQL's own NOTIFY lock). Index: horsies_tasks_claim.
CREATE FUNCTION horsies_offer(p_channel text, p_limits horsies_limits[], p_cluster int, p_freed text[], p_used text[],
                              p_marks jsonb, p_behind timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_limit horsies_limits;
  v_freed int;
BEGIN
  IF p_freed <@ p_used AND cardinality(p_freed) <= 1 THEN
    RETURN;  -- as it is under load, permit by permit
  END IF;
  IF p_cluster IS NOT NULL THEN  -- queues that this worker does not serve wait for the same permits
    IF cardinality(p_freed) > cardinality(p_used)
      AND EXISTS (SELECT FROM horsies_limits l WHERE l.queue_name <> '*' AND horsies_due(l.queue_name, clock_timestamp(), p_marks -> l.queue_name, p_behind))
    THEN
      PERFORM pg_notify(p_channel || '_new', '0 *');
    END IF;
    RETURN;
  END IF;
  FOREACH v_limit IN ARRAY p_limits LOOP
    IF v_limit.max_concurrency > 0 OR v_limit.partition_max_concurrency IS NOT NULL THEN
      v_freed := cardinality(array_positions(p_freed, v_limit.queue_name::text));
      IF v_freed > cardinality(array_positions(p_used, v_limit.queue_name::text))
        AND horsies_due(v_limit.queue_name, clock_timestamp(), p_marks -> v_limit.queue_name, p_behind)
      THEN
        PERFORM pg_notify(p_channel || '_new', '0 ' || v_limit.queue_name);
      END IF;
    END IF;
  END LOOP;
END
$$;
