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
    SELECT w.id
    FROM horsies_workflows w
    WHERE w.id = ANY (ARRAY(
        SELECT f.run
        FROM unnest(p_runs, p_numbers) AS f (run, number)
        CROSS JOIN LATERAL (
          SELECT n.kind
          FROM horsies_workflow_nodes n
          WHERE n.workflow_id = f.run AND n.number = f.number
          OFFSET 0
        ) AS n
        CROSS JOIN LATERAL (
          SELECT count(*) AS many
          FROM (
            SELECT
            FROM horsies_workflow_edges e
            WHERE e.workflow_id = f.run AND e.upstream = f.number
            LIMIT 11
          ) AS e
        ) AS below
        GROUP BY f.run
        HAVING bool_and(n.kind IN ('task', 'timer') AND below.many <= 10)
      ))
      AND w.status = 'RUNNING'
      AND w.owed_at IS NULL
      AND w.parent_id IS NULL
      AND w.max_in_flight IS NULL
      AND w.error_node IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
  );
  IF v_runs = '{}' THEN
    RETURN v_runs;
  END IF;

  RETURN ARRAY(
    SELECT f.run
    FROM unnest(p_runs, p_numbers, p_tasks) AS f (run, number, task)
    CROSS JOIN LATERAL (
      SELECT n.*
      FROM horsies_workflow_nodes n
      WHERE n.workflow_id = f.run AND n.number = f.number
      OFFSET 0
    ) AS n
    LEFT JOIN LATERAL horsies_downstream(f.run, f.number) AS d ON true
    WHERE f.run = ANY (v_runs)
    GROUP BY f.run
    HAVING count(*) <= p_many
      AND bool_and(
        coalesce(
          n.kind = 'task' AND n.status = 'ENQUEUED' AND n.task_id = f.task
          OR n.kind = 'timer' AND n.status = 'WAITING',
          false)
        AND (
          d.number IS NULL
          OR d.kind = 'task'
            AND d.status = 'PENDING'
            AND d.rule = 'all'
            AND d.when_path IS NULL
            AND d.delay IS NULL
            AND d.due_at IS NULL
        )
      )
      AND NOT EXISTS (
        SELECT FROM horsies_workflow_nodes a WHERE a.workflow_id = f.run AND a.status = 'ADDED'
      )
  );
END
$$;
