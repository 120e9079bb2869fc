-- Returns whether a worker can run a task: it has a task of that name and reads the version of the
-- format in which the task was sent. A worker without a row counts as able to run all names and to
-- read the first version. An invalid version counts as readable, because some worker has to take
-- the task to fail it.
CREATE OR REPLACE FUNCTION horsies_worker_knows(
  p_name text, p_options jsonb, p_taker horsies_workers
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT coalesce(p_taker.task_names ? p_name, true)
    AND CASE jsonb_typeof(p_options -> 'wire')
      WHEN 'number' THEN (p_options -> 'wire')::numeric <= coalesce(p_taker.wire, 1)
      ELSE true
    END
$$;
