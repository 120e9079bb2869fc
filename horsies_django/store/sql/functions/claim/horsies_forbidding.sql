-- Returns the run of a task if it forbids the start of the task, else no row. A run forbids it if
-- it is paused, was cancelled, has continued as another one, or was stopped by a failure. While a
-- run is undone, its undo nodes start; after a stop, nodes with the rule failed or finished start.
-- The tasks of a run that was deleted start.
-- A pause does not touch a task that another transaction holds, and a task may come back during it;
-- so the claim reads the run with its own snapshot: what it starts was claimed before the pause was
-- committed.
-- Call it as (t.workflow_id IS NULL OR NOT EXISTS (...)): then it becomes a part of the scan's
-- plan, which looks the run up by its key, only for tasks of runs. A scan walks over 20,000 such
-- tasks in 50 ms; a call of plpgsql for each took 600.
CREATE OR REPLACE FUNCTION horsies_forbidding(p_workflow uuid, p_node bigint) RETURNS SETOF uuid
LANGUAGE sql STABLE AS $$
  SELECT w.id
  FROM horsies_workflows w
  WHERE w.id = p_workflow
    AND CASE
      WHEN w.status IN ('PAUSED', 'CANCELLED') OR w.continued_as IS NOT NULL THEN true
      WHEN w.status = 'COMPENSATING' OR (w.on_error = 'stop' AND w.error_code IS NOT NULL)
        THEN NOT EXISTS (
          SELECT
          FROM horsies_workflow_nodes n
          WHERE n.workflow_id = w.id
            AND n.number = p_node
            AND CASE w.status
              WHEN 'COMPENSATING' THEN n.kind = 'undo'
              ELSE n.rule IN ('failed', 'finished')
            END
        )
      ELSE false
    END
$$;
