-- Records that the parents of finished runs have been advanced.
-- A run for which its parent still waits is left out: it finished, perhaps again after a retry,
-- only after the parent was advanced.
-- Locks: the rows of the runs.
UPDATE horsies_workflows run
SET advanced_at = clock_timestamp()
WHERE run.id = ANY (%(ids)s::uuid[])
  AND run.finished_at IS NOT NULL
  AND (  -- an EXISTS may become a join with all nodes
    SELECT n.task_id = run.id AND n.status = 'ENQUEUED'
    FROM horsies_workflow_nodes n
    WHERE n.workflow_id = run.parent_id AND n.number = run.parent_node
  ) IS NOT TRUE
