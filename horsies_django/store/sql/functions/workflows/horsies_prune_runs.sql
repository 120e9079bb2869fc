-- Deletes finished runs that are older than p_age, with their child runs, nodes, edges, signals,
-- tasks, attempts and steps. The row of a run goes last, so a large run takes several calls.
-- Runs with tasks that still run, also in child runs, stay: their nodes are open, of which there is
-- an index, while the tasks would be read in each call. Runs with a task that stops its partition
-- stay, too, and runs to which, or to whose tasks, rows of the project refer. If there may be such
-- rows, horsies_prunings stores under 'runs' how far a round came; in any case it stores when one
-- was done.
-- A call looks for each run where it found the one before: the entries of runs that it deleted or
-- skipped remain in the index.
-- Args: p_many is the maximum of rows of tasks, nodes, edges and signals.
-- Returns: how many runs, tasks and attempts were deleted; more is whether there may be others.
-- Locks: an advisory lock, without waiting; rows of runs, skipping locked ones.
-- Index: horsies_workflows_finished, horsies_workflows_parent, horsies_workflow_nodes_open,
-- horsies_tasks_node, horsies_tasks_stopped, horsies_signals_run.
CREATE OR REPLACE FUNCTION horsies_prune_runs(
  p_age interval, p_many int, OUT runs int, OUT tasks int, OUT attempts int, OUT more boolean
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_left int := p_many;
  v_finished timestamptz := '-infinity';
  v_tree uuid[];
  v_ids uuid[];
  v_guarded CONSTANT boolean := horsies_may_be_referenced('horsies_tasks')
                                OR horsies_may_be_referenced('horsies_workflows');
  v_start timestamptz := '-infinity';
  v_held uuid[] := ARRAY(
    SELECT t.workflow_id
    FROM horsies_tasks t
    WHERE t.order_stop IS NOT NULL AND t.workflow_id IS NOT NULL
  );
BEGIN
  runs := 0;
  tasks := 0;
  attempts := 0;
  more := false;

  IF NOT pg_try_advisory_xact_lock(
    hashtextextended('prune', 'horsies_workflows'::regclass::oid::bigint)
  ) THEN
    RETURN;
  END IF;

  IF v_guarded THEN
    v_start := coalesce(
      (SELECT p.reached_at FROM horsies_prunings p WHERE p.key = 'runs'), v_start);
    v_finished := v_start;
  END IF;

  WHILE v_left > 0 LOOP
    SELECT run.finished_at, family.ids
    INTO v_finished, v_tree
    FROM horsies_workflows run
    CROSS JOIN LATERAL (
      WITH RECURSIVE tree (id) AS (
        SELECT run.id
        UNION ALL
        SELECT child_run.id
        FROM tree
        CROSS JOIN LATERAL (
          SELECT child_run.id
          FROM horsies_workflows child_run
          WHERE child_run.parent_id = tree.id
          OFFSET 0
        ) AS child_run
      )
      SELECT array_agg(tree.id) AS ids FROM tree
    ) AS family
    WHERE run.finished_at >= v_finished
      AND run.finished_at < v_now - p_age
      AND run.parent_id IS NULL
      AND NOT family.ids && v_held
      AND NOT EXISTS (
        SELECT FROM horsies_workflow_nodes node
        WHERE node.workflow_id = ANY (family.ids) AND node.finished_at IS NULL
        OFFSET 0
      )
    ORDER BY run.finished_at
    LIMIT 1
    FOR UPDATE OF run SKIP LOCKED;
    EXIT WHEN NOT FOUND;

    IF v_guarded AND (
      horsies_referenced('horsies_workflows', v_tree) <> '{}'
      OR horsies_referenced('horsies_tasks', ARRAY(
        SELECT t.id FROM horsies_tasks t WHERE t.workflow_id = ANY (v_tree)
      )) <> '{}'
    ) THEN
      v_held := v_held || v_tree;
      -- The next call starts at the time of the last one, whose runs it looks at again.
      v_left := v_left - (v_finished > v_start)::int;
      CONTINUE;
    END IF;

    v_ids := ARRAY(
      SELECT t.id FROM horsies_tasks t WHERE t.workflow_id = ANY (v_tree) LIMIT v_left
    );
    attempts := attempts + horsies_delete_tasks(v_ids);
    tasks := tasks + cardinality(v_ids);
    v_left := v_left - cardinality(v_ids);

    WITH edges AS (
      DELETE FROM horsies_workflow_edges edge
      WHERE edge.ctid = ANY (ARRAY(
        SELECT chosen_edge.ctid
        FROM horsies_workflow_edges chosen_edge
        WHERE chosen_edge.workflow_id = ANY (v_tree)
        LIMIT v_left
      ))
      RETURNING 1
    ),
    signals AS (
      DELETE FROM horsies_workflow_signals signal
      WHERE signal.id = ANY (ARRAY(
        SELECT chosen_signal.id
        FROM horsies_workflow_signals chosen_signal
        WHERE chosen_signal.workflow_id = ANY (v_tree)
        LIMIT v_left - (SELECT count(*) FROM edges)
      ))
      RETURNING 1
    ),
    nodes AS (
      DELETE FROM horsies_workflow_nodes node
      WHERE node.ctid = ANY (ARRAY(
        SELECT chosen_node.ctid
        FROM horsies_workflow_nodes chosen_node
        WHERE chosen_node.workflow_id = ANY (v_tree)
        LIMIT v_left - (SELECT count(*) FROM edges) - (SELECT count(*) FROM signals)
      ))
      RETURNING 1
    )
    SELECT
      v_left
      - (SELECT count(*) FROM edges)
      - (SELECT count(*) FROM signals)
      - (SELECT count(*) FROM nodes)
    INTO v_left;

    IF v_left > 0 THEN
      DELETE FROM horsies_workflows w WHERE w.id = ANY (v_tree);
      runs := runs + 1;
    END IF;
  END LOOP;

  more := v_left <= 0;

  INSERT INTO horsies_prunings AS p (key, began_at, pruned_at, reached_at)
  VALUES ('runs', v_now, v_now, CASE WHEN more AND v_guarded THEN v_finished END)
  ON CONFLICT (key) DO UPDATE
  SET pruned_at = v_now,
      reached_at = excluded.reached_at,
      done_at = CASE WHEN more THEN p.done_at ELSE v_now END;
END
$$;
