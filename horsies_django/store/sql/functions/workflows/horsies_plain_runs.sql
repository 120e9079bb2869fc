-- Locks runs whose nodes, tasks or timers, have completed or are about to, and returns the runs in
-- which nothing else has to be decided. In these, the nodes lead to nothing, or to tasks without
-- conditions or delays that need all of their upstream nodes; no failure, limit, parent run or
-- ADDED node matters, and nothing is left to be done (owed_at). horsies_advance_plain moves these
-- runs on. The other runs, and runs that another transaction holds, are left to horsies_advance.
-- Before the lock it leaves out maps, and nodes with more than ten downstream ones: their tasks
-- often end in numbers, which an advance takes together.
-- Args: p_numbers has a node of each run in p_runs, p_tasks its task: NULL for a timer, and for a
-- task that did not complete. p_many is the maximum of downstream nodes per run; a node that leads
-- to nothing counts as one.
-- Locks: rows of runs, skipping locked ones.
-- Index: primary keys, horsies_workflow_nodes_added.
CREATE OR REPLACE FUNCTION horsies_plain_runs(
  p_runs uuid[], p_numbers bigint[], p_tasks uuid[], p_many int
) RETURNS uuid[] LANGUAGE plpgsql VOLATILE
SET enable_nestloop = on AS $$
DECLARE
  v_runs uuid[];
BEGIN
  v_runs := ARRAY(
    SELECT locked_run.id
    FROM horsies_workflows locked_run
    WHERE locked_run.id = ANY (ARRAY(
        SELECT ended.run
        FROM unnest(p_runs, p_numbers) AS ended (run, number)
        CROSS JOIN LATERAL (
          SELECT node.kind
          FROM horsies_workflow_nodes node
          WHERE node.workflow_id = ended.run AND node.number = ended.number
          OFFSET 0
        ) AS node
        CROSS JOIN LATERAL (
          SELECT count(*) AS many
          FROM (
            SELECT
            FROM horsies_workflow_edges edge
            WHERE edge.workflow_id = ended.run AND edge.upstream = ended.number
            LIMIT 11
          ) AS edge
        ) AS below
        GROUP BY ended.run
        HAVING bool_and(node.kind IN ('task', 'timer') AND below.many <= 10)
      ))
      AND locked_run.status = 'RUNNING'
      AND locked_run.owed_at IS NULL
      AND locked_run.parent_id IS NULL
      AND locked_run.max_in_flight IS NULL
      AND locked_run.error_node IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
  );
  IF v_runs = '{}' THEN
    RETURN v_runs;
  END IF;

  RETURN ARRAY(
    SELECT ended.run
    FROM unnest(p_runs, p_numbers, p_tasks) AS ended (run, number, task)
    CROSS JOIN LATERAL (
      SELECT node.*
      FROM horsies_workflow_nodes node
      WHERE node.workflow_id = ended.run AND node.number = ended.number
      OFFSET 0
    ) AS node
    LEFT JOIN LATERAL horsies_downstream(ended.run, ended.number) AS downstream_node ON true
    WHERE ended.run = ANY (v_runs)
    GROUP BY ended.run
    HAVING count(*) <= p_many
      AND bool_and(
        coalesce(
          node.kind = 'task' AND node.status = 'ENQUEUED' AND node.task_id = ended.task
          OR node.kind = 'timer' AND node.status = 'WAITING',
          false)
        AND (
          downstream_node.number IS NULL
          OR downstream_node.kind = 'task'
            AND downstream_node.status = 'PENDING'
            AND downstream_node.rule = 'all'
            AND downstream_node.when_path IS NULL
            AND downstream_node.delay IS NULL
            AND downstream_node.due_at IS NULL
        )
      )
      AND NOT EXISTS (
        SELECT
        FROM horsies_workflow_nodes added_node
        WHERE added_node.workflow_id = ended.run AND added_node.status = 'ADDED'
      )
  );
END
$$;
