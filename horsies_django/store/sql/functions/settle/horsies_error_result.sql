-- Returns the result of a failed task, in the format of core/codec/envelopes.py.
CREATE OR REPLACE FUNCTION horsies_error_result(p_code text, p_message text) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
  SELECT jsonb_build_object(
    'err',
    jsonb_build_object(
      'error_code', p_code, 'message', p_message, 'data', NULL, 'exception', NULL))
$$;
