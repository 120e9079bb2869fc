-- The pause before retry number p_retry, the first is 1, under the policy in a task's options (core/retry.py): with jitter up to a quarter
-- longer or shorter, and never longer than the policy's own bound or 30 days.
-- Locks: none. Index: none.
CREATE FUNCTION horsies_pause_v1(p_policy jsonb, p_retry int) RETURNS interval LANGUAGE sql VOLATILE AS $$
  SELECT make_interval(secs => least(
    CASE p_policy ->> 'strategy'
      WHEN 'fixed' THEN (p_policy -> 'intervals' ->> least(p_retry, jsonb_array_length(p_policy -> 'intervals')) - 1)::float8
      ELSE (p_policy -> 'intervals' ->> 0)::float8 * 2 ^ least(p_retry - 1, 40)
    END * CASE WHEN (p_policy ->> 'jitter')::boolean THEN 0.75 + random() / 2 ELSE 1 END,
    coalesce((p_policy ->> 'most')::float8, 2592000)))
$$;
