-- Returns whether a finished task is among those that a round deletes: with p_keep, a completed one with this keep_result in its options;
-- else one of the queues, unless it completed and is kept for longer than p_age. Options may be any JSON.
-- Locks: none. Index: none.
CREATE FUNCTION horsies_prunable(
  p_queue text, p_status text, p_options jsonb, p_queues text[], p_others boolean, p_age interval, p_keep jsonb
) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN p_keep IS NOT NULL THEN coalesce(p_status = 'COMPLETED' AND p_options @> jsonb_build_object('keep_result', p_keep), false)
    WHEN (p_queue = ANY (p_queues)) = p_others THEN false
    WHEN p_options IS NULL OR p_status <> 'COMPLETED' THEN true
    WHEN jsonb_typeof(p_options -> 'keep_result') = 'number' THEN
      (p_options -> 'keep_result')::numeric <= extract(epoch FROM p_age) * 1000
    ELSE true END
$$;
