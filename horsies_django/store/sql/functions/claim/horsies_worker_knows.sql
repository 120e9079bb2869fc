-- Whether a worker can run a task: it has the code of that name and reads the version of the form in which the task was sent. A worker
-- that does not say, because its row is gone, is taken to know all names, and to read the first version. A version that is no number is
-- no newer one: some worker has to take the task, to fail it.
-- Locks: none. Index: none.
CREATE FUNCTION horsies_worker_knows(p_name text, p_options jsonb, p_taker horsies_workers) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT coalesce(p_taker.task_names ? p_name, true) AND CASE jsonb_typeof(p_options -> 'wire')
    WHEN 'number' THEN (p_options -> 'wire')::numeric <= coalesce(p_taker.wire, 1) ELSE true END
$$;
