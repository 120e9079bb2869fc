-- Returns whether a finished task is among those that a round deletes. Without p_own, these are the
-- tasks of the queues, except completed ones that are kept for longer than p_age.
--
-- Options may be any JSON. The function is immutable, so that PostgreSQL puts it into the query: a
-- call per row would take several times as long as to read the row.
--
-- Args: p_queues: the queues; if p_others, all except these.
--   p_own: instead, completed tasks whose options contain this object; or, if its keep_result is an
--     array of two numbers, completed tasks whose keep_result is longer than the first, up to the
--     second.
CREATE OR REPLACE FUNCTION horsies_prunable(
  p_queue text, p_status text, p_options jsonb, p_queues text[], p_others boolean, p_age interval,
  p_own jsonb
) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN jsonb_typeof(p_own -> 'keep_result') = 'array' THEN
      p_status = 'COMPLETED'
      AND CASE jsonb_typeof(p_options -> 'keep_result')
            WHEN 'number' THEN
              (p_options -> 'keep_result')::numeric > (p_own -> 'keep_result' -> 0)::numeric
              AND (p_options -> 'keep_result')::numeric <= (p_own -> 'keep_result' -> 1)::numeric
            ELSE false
          END
    WHEN p_own IS NOT NULL THEN p_options @> p_own AND p_status = 'COMPLETED'
    WHEN (p_queue = ANY (p_queues)) = p_others THEN false
    WHEN p_options IS NULL OR p_status <> 'COMPLETED' THEN true
    WHEN jsonb_typeof(p_options -> 'keep_result') = 'number' THEN
      (p_options -> 'keep_result')::numeric <= extract(epoch FROM p_age) * 1000
    ELSE true
  END
$$;
