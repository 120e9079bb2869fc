-- Returns arguments by name in the form in which a task stores them.
CREATE OR REPLACE FUNCTION horsies_stored_arguments(p_named jsonb, p_codec text)
RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT
    CASE p_codec
      WHEN 'plain' THEN jsonb_build_object('args', '[]'::jsonb, 'kwargs', p_named)
      ELSE p_named
    END
$$;
