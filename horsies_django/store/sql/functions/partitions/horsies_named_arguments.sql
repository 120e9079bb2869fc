-- Returns the arguments of a call of the form "plain" by name: the arguments given by keyword, and
-- the positional ones that were sent with a name. Positional arguments without a name are a list
-- under "*". Other JSON counts as no arguments, so that no row can make statements fail.
CREATE OR REPLACE FUNCTION horsies_named_arguments(p_kwargs jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT
    CASE jsonb_typeof(p_kwargs -> 'kwargs') WHEN 'object' THEN p_kwargs -> 'kwargs' ELSE '{}' END
    || coalesce(
      jsonb_object_agg(given.name, given.value) FILTER (WHERE given.name IS NOT NULL),
      '{}'
    )
    || CASE
      WHEN bool_or(given.name IS NULL) THEN jsonb_build_object(
        '*',
        jsonb_agg(given.value ORDER BY given.place) FILTER (WHERE given.name IS NULL)
      )
      ELSE '{}'
    END
  FROM (
    SELECT a.value, a.place, p_kwargs -> 'names' ->> (a.place - 1)::int AS name
    FROM jsonb_array_elements(
      CASE jsonb_typeof(p_kwargs -> 'args') WHEN 'array' THEN p_kwargs -> 'args' ELSE '[]' END
    ) WITH ORDINALITY AS a (value, place)
  ) AS given
$$;
