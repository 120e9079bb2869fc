-- Does one thing to several tasks. A task whose state does not allow it stays as it is.
--
-- Args: p_verb: 'retry', 'cancel', 'terminate', 'redact', 'copy' or 'purge', which deletes tasks.
--   p_statuses: tasks of another status are left out; NULL: none is.
--   p_spread: retried tasks are due within that time from now, at random; NULL: now.
-- Returns: how many tasks there are of each verdict of horsies_retry, horsies_cancel,
--   horsies_redact or horsies_copy; for a purge, of 'DELETED' and 'KEPT'. A task that is left to
--   others is 'LOCKED': another transaction holds it, sends the same work, has deleted it or has
--   changed its status to one that is not in p_statuses.
-- Moves: as these functions.
-- Locks: the task rows, in the order of their ids, skipping locked ones; see these functions.
CREATE OR REPLACE FUNCTION horsies_act(
  p_verb text, p_ids uuid[], p_statuses text[], p_channel text, p_spread interval, p_actor text,
  p_reason text
) RETURNS TABLE (verdict text, many bigint) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  c_patience CONSTANT text := '1ms';  -- as good as none, but 0 would be for ever
  v_ids uuid[];
  v_verdicts text[];
  v_deleted int;
BEGIN
  v_ids := ARRAY(
    SELECT t.id
    FROM horsies_tasks t
    WHERE t.id = ANY (p_ids) AND (p_statuses IS NULL OR t.status = ANY (p_statuses))
    ORDER BY t.id
    FOR NO KEY UPDATE SKIP LOCKED
  );

  IF p_verb = 'retry' THEN
    v_verdicts := ARRAY(
      SELECT r.verdict
      FROM unnest(v_ids) AS one (id)
      CROSS JOIN LATERAL horsies_retry(one.id, NULL, c_patience, p_spread) AS r
    );

    PERFORM pg_notify(
      p_channel || '_new', extract(epoch FROM min(t.enqueued_at)) || ' ' || t.queue_name
    )
    FROM horsies_tasks t
    WHERE t.id = ANY (v_ids) AND t.status = 'PENDING'
    GROUP BY t.queue_name;
  ELSIF p_verb = 'redact' THEN
    RETURN QUERY
    SELECT CASE WHEN r.redacted THEN 'REDACTED' ELSE r.status END, count(*)
    FROM unnest(v_ids) AS one (id)
    CROSS JOIN LATERAL horsies_redact(one.id, p_actor, p_reason) AS r
    GROUP BY 1;
  ELSIF p_verb = 'copy' THEN
    RETURN QUERY
    SELECT
      CASE
        WHEN c.copied THEN 'COPIED'
        WHEN c.redacted THEN 'REDACTED'
        ELSE c.status
      END,
      count(*)
    FROM unnest(v_ids) WITH ORDINALITY AS one (id, place)
    CROSS JOIN LATERAL horsies_copy(one.id, horsies_uuid7(one.place::int)) AS c
    GROUP BY 1;
  ELSIF p_verb = 'purge' THEN
    v_deleted := horsies_delete_finished(v_ids);

    RETURN QUERY
    SELECT *
    FROM (VALUES
      ('DELETED', v_deleted::bigint),
      ('KEPT', (cardinality(v_ids) - v_deleted)::bigint)
    ) AS v (verdict, many)
    WHERE v.many > 0;
  ELSE
    RETURN QUERY
    SELECT c.verdict, count(*)
    FROM horsies_cancel(v_ids, p_verb = 'terminate', p_channel) AS c
    GROUP BY 1;
  END IF;

  v_verdicts := v_verdicts
    || array_fill('LOCKED'::text, ARRAY[cardinality(p_ids) - cardinality(v_ids)]);

  RETURN QUERY
  SELECT v.verdict, count(*)
  FROM unnest(v_verdicts) AS v (verdict)
  GROUP BY 1;
END
$$;
