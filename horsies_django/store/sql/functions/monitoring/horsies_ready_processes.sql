-- Returns how many processes of a worker are ready to run tasks, by its last heartbeat; all of them
-- before its first heartbeat with load. holding is NULL in the row of a process that
-- is not ready.
-- Index: horsies_heartbeats_worker.
CREATE OR REPLACE FUNCTION horsies_ready_processes(p_worker horsies_workers) RETURNS int
LANGUAGE sql STABLE AS $$
  SELECT CASE
    WHEN p_worker.processes = 0 THEN 1
    WHEN p_worker.children_memory_mb IS NULL THEN p_worker.processes
    ELSE (
      SELECT least(count(*)::int, p_worker.processes)
      FROM horsies_heartbeats child
      WHERE child.worker_id = p_worker.id
        AND child.role = 'runner'
        AND child.holding IS NOT NULL
    )
  END
$$;
