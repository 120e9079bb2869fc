-- Returns which of a pass's outcomes or releases were not written.
-- Locks: none. Index: none.
CREATE FUNCTION horsies_missed(p_entries jsonb, p_landed uuid[]) RETURNS uuid[] LANGUAGE sql STABLE AS $$
  SELECT array_agg((e.value ->> 'id')::uuid) FROM jsonb_array_elements(p_entries) AS e WHERE (e.value ->> 'id')::uuid <> ALL (p_landed)
$$;
