-- The partition that a task belongs to: the one text of the rule. Called by send, by the pass, and by whoever re-keys.
-- A key is a JSON object of what the rule names: {"task": ...} by task, the arguments by their JSON keys; one that is missing
-- counts as null, so all tasks without it share a partition. '[]' takes all arguments. A long key is cut, with its hash.
-- NULL when the rule partitions by nothing.
-- Locks: none. Index: none.
CREATE FUNCTION horsies_partition_key(p_by_args jsonb, p_by_task boolean, p_kwargs jsonb, p_task_name text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  v_key text;
BEGIN
  IF p_by_args IS NULL AND NOT p_by_task THEN
    RETURN NULL;
  END IF;
  v_key := (CASE
      WHEN p_by_args IS NULL THEN '{}'
      WHEN p_by_args = '[]' THEN p_kwargs
      ELSE (SELECT jsonb_object_agg(a.name, coalesce(p_kwargs -> a.name, 'null')) FROM jsonb_array_elements_text(p_by_args) AS a (name))
    END || CASE WHEN p_by_task THEN jsonb_build_object('', p_task_name) ELSE '{}' END)::text;
  RETURN CASE WHEN length(v_key) <= 200 THEN v_key
              ELSE left(v_key, 130) || '...' || encode(sha256(convert_to(v_key, 'UTF8')), 'hex') END;
END
$$;
