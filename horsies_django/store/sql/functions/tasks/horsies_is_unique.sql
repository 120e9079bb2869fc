-- Returns whether a task keeps duplicates from being sent: it has not finished, or, until its 'start', was never claimed.
CREATE OR REPLACE FUNCTION horsies_is_unique(p_id uuid, p_until text) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (SELECT FROM horsies_tasks t
                 WHERE t.id = p_id AND t.finished_at IS NULL AND (p_until = 'end' OR t.claim_generation = 0))
$$;
