-- Does something to tasks, each of which stays as it is if it does not allow that: p_verb is 'retry', 'cancel', 'terminate', 'redact', 'copy' or
-- 'purge', which deletes. A retry is due within p_spread from now, at random (NULL: now). Returns how many there are of each verdict of
-- horsies_retry, horsies_cancel, horsies_redact or horsies_copy; 'DELETED', and 'KEPT' what a purge leaves; and as 'LOCKED' how many are left to
-- others, which held them or send the same work, or changed them from p_statuses (NULL: any) to another one.
-- Moves what these functions move.
-- Locks: the task rows, in the order of their ids, skipping locked ones; see these functions.
CREATE OR REPLACE FUNCTION horsies_act(p_verb text, p_ids uuid[], p_statuses text[], p_channel text, p_spread interval, p_actor text, p_reason text)
RETURNS TABLE (verdict text, many bigint) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  c_patience CONSTANT text := '1ms';  -- as good as none, but 0 would be for ever
  v_ids uuid[];
  v_verdicts text[];
  v_deleted int;
BEGIN
  v_ids := ARRAY(SELECT t.id FROM horsies_tasks t WHERE t.id = ANY (p_ids) AND (p_statuses IS NULL OR t.status = ANY (p_statuses))
                 ORDER BY t.id FOR NO KEY UPDATE SKIP LOCKED);
  IF p_verb = 'retry' THEN
    v_verdicts := ARRAY(
      SELECT r.verdict FROM unnest(v_ids) AS one (id) CROSS JOIN LATERAL horsies_retry(one.id, NULL, c_patience, p_spread) AS r);
    PERFORM pg_notify(p_channel || '_new', extract(epoch FROM min(t.enqueued_at)) || ' ' || t.queue_name)
    FROM horsies_tasks t WHERE t.id = ANY (v_ids) AND t.status = 'PENDING' GROUP BY t.queue_name;
  ELSIF p_verb = 'redact' THEN
    RETURN QUERY SELECT CASE WHEN r.redacted THEN 'REDACTED' ELSE r.status END, count(*)
                 FROM unnest(v_ids) AS one (id) CROSS JOIN LATERAL horsies_redact(one.id, p_actor, p_reason) AS r GROUP BY 1;
  ELSIF p_verb = 'copy' THEN
    RETURN QUERY SELECT CASE WHEN c.copied THEN 'COPIED' WHEN c.redacted THEN 'REDACTED' ELSE c.status END, count(*)
                 FROM unnest(v_ids) WITH ORDINALITY AS one (id, place) CROSS JOIN LATERAL horsies_copy(one.id, horsies_uuid7(one.place::int)) AS c GROUP BY 1;
  ELSIF p_verb = 'purge' THEN
    v_deleted := horsies_delete_finished(v_ids);
    RETURN QUERY SELECT * FROM (VALUES ('DELETED', v_deleted::bigint), ('KEPT', (cardinality(v_ids) - v_deleted)::bigint)) AS v (verdict, many) WHERE v.many > 0;
  ELSE
    RETURN QUERY SELECT c.verdict, count(*) FROM horsies_cancel(v_ids, p_verb = 'terminate', p_channel) AS c GROUP BY 1;
  END IF;
  v_verdicts := v_verdicts || array_fill('LOCKED'::text, ARRAY[cardinality(p_ids) - cardinality(v_ids)]);
  RETURN QUERY SELECT v.verdict, count(*) FROM unnest(v_verdicts) AS v (verdict) GROUP BY 1;
END
$$;
