-- Returns the partition of a task, or NULL if the rule does not partition. This is the only
-- implementation of the rule.
-- A key is a JSON object of the arguments in p_by_args, by their JSON keys; missing arguments count
-- as null. Equal numbers are equal, as in core/unique.py: zeros at the end of fractions are left
-- out, except in strings. Long keys are cut and end with a hash.
-- Args:
--   p_by_args: the names of the arguments; '[]' means all arguments.
--   p_by_task: whether the key has the name of the task, too, under the key "".
--   p_codec: the form of p_kwargs.
CREATE OR REPLACE FUNCTION horsies_partition_key(
  p_by_args jsonb, p_by_task boolean, p_kwargs json, p_task_name text, p_codec text
) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  c_zeros CONSTANT text := '("[^"\\]*(?:\\.[^"\\]*)*")|(\.[0-9]*[1-9])0+(?![0-9])|\.0+(?![0-9])';
  v_key text;
  v_kwargs jsonb;
BEGIN
  IF p_by_args IS NULL AND NOT p_by_task THEN
    RETURN NULL;
  END IF;

  IF p_by_args IS NOT NULL THEN
    v_kwargs := CASE p_codec
      WHEN 'plain' THEN horsies_named_arguments(p_kwargs::jsonb)
      ELSE p_kwargs::jsonb
    END;
  END IF;

  v_key := (
    CASE
      WHEN p_by_args IS NULL THEN '{}'
      WHEN p_by_args = '[]' THEN v_kwargs
      ELSE (
        SELECT jsonb_object_agg(a.name, coalesce(v_kwargs -> a.name, 'null'))
        FROM jsonb_array_elements_text(p_by_args) AS a (name)
      )
    END
    || CASE WHEN p_by_task THEN jsonb_build_object('', p_task_name) ELSE '{}' END
  )::text;
  IF v_key LIKE '%.%0%' THEN
    v_key := regexp_replace(v_key, c_zeros, '\1\2', 'g');
  END IF;

  RETURN CASE
    WHEN length(v_key) <= 200 THEN v_key
    ELSE left(v_key, 130) || '...' || encode(sha256(convert_to(v_key, 'UTF8')), 'hex')
  END;
END
$$;
