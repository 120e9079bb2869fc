-- Whether a worker can run a task: it has the code of that name and reads the version of the form in which the task was sent. A worker
-- that does not say (one of 0.1.0) is taken to know all names, and to read the first version.
-- Locks: none. Index: none.
CREATE FUNCTION horsies_knows_v1(p_name text, p_options jsonb, p_taker horsies_workers) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT coalesce(p_taker.task_names ? p_name, true) AND coalesce((p_options ->> 'wire')::int <= coalesce(p_taker.wire, 1), true)
$$;
