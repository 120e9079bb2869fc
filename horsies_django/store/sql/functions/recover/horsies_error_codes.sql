-- Returns the error codes of some tasks. Workers read those of the tasks that horsies_reap failed
-- with it: horsies_reap cannot return the codes, because workers of release 0.1 call it, too.
CREATE OR REPLACE FUNCTION horsies_error_codes(p_ids uuid[])
RETURNS TABLE (id uuid, code text) LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
  SELECT t.id, t.error_code::text
  FROM horsies_tasks t
  WHERE t.id = ANY (p_ids)
$$;
