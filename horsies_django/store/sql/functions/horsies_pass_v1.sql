-- The pass: once round the engine in one round trip and one transaction, as separate statements so that each sees what the
-- one before it did: settle, release, claim. Finished ids are announced to waiting processes, if there are any.
-- Returns the rows of horsies_claim_v1 and one of kind 'settled' per outcome or release that landed.
-- Locks: task rows only, never waiting for one. Index: see the functions it calls.
CREATE FUNCTION horsies_pass_v1(p_worker uuid, p_channel text, p_outcomes jsonb, p_releases jsonb,
                                p_queues text[], p_priorities int[], p_sync int, p_async int)
RETURNS TABLE (kind text, id uuid, generation int, lane text, task_name text, kwargs text, seconds float8)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_done uuid[] := '{}';
BEGIN
  IF p_outcomes IS NOT NULL THEN
    v_done := coalesce(horsies_settle_v1(p_worker, p_outcomes), '{}');
    RETURN QUERY SELECT 'settled', s.id, NULL::int, NULL, NULL, NULL, NULL::float8 FROM unnest(v_done) AS s (id);
  END IF;
  IF p_releases IS NOT NULL THEN
    RETURN QUERY SELECT 'settled', s.id, NULL::int, NULL, NULL, NULL, NULL::float8
    FROM unnest(horsies_release_v1(p_worker, p_releases, p_channel)) AS s (id);
  END IF;
  IF p_sync > 0 OR p_async > 0 THEN
    FOR kind, id, generation, lane, task_name, kwargs, seconds IN
      SELECT c.* FROM horsies_claim_v1(p_worker, p_queues, p_priorities, p_sync, p_async) AS c
    LOOP
      IF kind = 'expired' THEN
        v_done := v_done || id;
      END IF;
      RETURN NEXT;
    END LOOP;
  END IF;
  IF v_done <> '{}' AND EXISTS (SELECT FROM horsies_waiters w WHERE w.expires_at > clock_timestamp()) THEN
    -- 200 ids of 36 characters stay below the 8,000 bytes that a payload may have
    PERFORM pg_notify(p_channel || '_done', string_agg(d.id::text, ' '))
    FROM unnest(v_done) WITH ORDINALITY AS d (id, place) GROUP BY (d.place - 1) / 200;
  END IF;
END
$$;
