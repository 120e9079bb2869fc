-- Wake other workers where permits of a cap came free, this worker did not use them all, and tasks wait: nobody else would know.
-- Locks: none (the commit takes PostgreSQL's own NOTIFY lock). Index: horsies_tasks_claim.
CREATE FUNCTION horsies_offer_v1(p_channel text, p_limits horsies_limits[], p_cluster int, p_freed text[], p_used text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_freed record;
BEGIN
  IF p_freed <@ p_used AND cardinality(p_freed) <= 1 THEN
    RETURN;  -- as it is under load, permit by permit
  END IF;
  IF p_cluster IS NOT NULL THEN
    IF cardinality(p_freed) > cardinality(p_used) AND EXISTS (
      SELECT FROM horsies_tasks t WHERE t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
    ) THEN
      PERFORM pg_notify(p_channel || '_new', '0 *');
    END IF;
    RETURN;
  END IF;
  FOR v_freed IN
    SELECT f.queue FROM unnest(p_freed) AS f (queue) JOIN unnest(p_limits) AS l ON l.queue_name = f.queue
    WHERE l.max_concurrency > 0 OR l.partition_max_concurrency IS NOT NULL
    GROUP BY f.queue
    HAVING count(*) > (SELECT count(*) FROM unnest(p_used) AS u (queue) WHERE u.queue = f.queue)
  LOOP
    IF EXISTS (
      SELECT FROM horsies_tasks t
      WHERE t.queue_name = v_freed.queue AND t.lane IN ('sync', 'async') AND t.enqueued_at <= clock_timestamp()
        AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
    ) THEN
      PERFORM pg_notify(p_channel || '_new', '0 ' || v_freed.queue);
    END IF;
  END LOOP;
END
$$;
