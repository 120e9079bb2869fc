-- Returns the delay before retry p_retry (the first is 1) under the policy in a task's options, as core/retry.py does: jitter adds or
-- removes up to a quarter, and the policy's maximum and 30 days bound it.
-- NULL if the policy has no valid list of numbers. It never raises, because then the task could not even be failed.
-- Locks: none. Index: none.
CREATE FUNCTION horsies_retry_delay(p_policy jsonb, p_retry int) RETURNS interval LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  c_longest CONSTANT numeric := 2592000;
  v_pauses jsonb := p_policy -> 'intervals';
  v_fixed boolean := p_policy ->> 'strategy' IS NOT DISTINCT FROM 'fixed';
  v_pause jsonb;
  v_most jsonb := p_policy -> 'most';
BEGIN
  IF jsonb_typeof(v_pauses) IS DISTINCT FROM 'array' THEN
    RETURN NULL;
  END IF;
  v_pause := v_pauses -> CASE WHEN v_fixed THEN least(p_retry, jsonb_array_length(v_pauses)) - 1 ELSE 0 END;
  IF jsonb_typeof(v_pause) IS DISTINCT FROM 'number' THEN
    RETURN NULL;
  END IF;
  RETURN make_interval(secs => greatest(0, least(
    least(v_pause::numeric, c_longest) * CASE WHEN v_fixed THEN 1 ELSE 2 ^ least(p_retry - 1, 40) END::numeric
      * CASE WHEN p_policy -> 'jitter' = 'true' THEN 0.75 + random() / 2 ELSE 1 END::numeric,
    CASE jsonb_typeof(v_most) WHEN 'number' THEN v_most::numeric ELSE c_longest END, c_longest))::float8);
END
$$;
