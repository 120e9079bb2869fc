-- Which of a pass's outcomes or releases did not land, as rows of the pass.
-- Locks: none. Index: none.
CREATE FUNCTION horsies_missed(p_entries jsonb, p_landed uuid[])
RETURNS TABLE (kind text, id uuid, generation int, lane text, task_name text, kwargs text, attempt int, options text, number float8) LANGUAGE sql STABLE AS $$
  SELECT 'missed', (e.value ->> 'id')::uuid, NULL::int, NULL, NULL, NULL, NULL::int, NULL, NULL::float8 FROM jsonb_array_elements(p_entries) AS e
  WHERE (e.value ->> 'id')::uuid <> ALL (p_landed)
$$;
