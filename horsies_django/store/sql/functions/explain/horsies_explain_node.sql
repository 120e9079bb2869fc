-- Collects the facts that decide now about a node of a run, for core/node_reasoning.py.
-- Args: p_many is the largest number of open and of failed upstream nodes to return.
-- Returns: the text of a JSON object; NULL if there is no such node. Its "task" is the id of a task
-- of the node that has not finished; of a map, the first one.
-- Index: primary keys, horsies_workflow_edges_up, horsies_workflow_nodes_open, horsies_tasks_node,
-- horsies_audit_subject.
CREATE OR REPLACE FUNCTION horsies_explain_node(p_workflow uuid, p_number bigint, p_many int)
RETURNS text LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_run horsies_workflows;
  v_node horsies_workflow_nodes;
  v_facts jsonb;
BEGIN
  SELECT w.* INTO v_run FROM horsies_workflows w WHERE w.id = p_workflow;

  SELECT n.*
  INTO v_node
  FROM horsies_workflow_nodes n
  WHERE n.workflow_id = p_workflow AND n.number = p_number;

  IF v_run.id IS NULL OR v_node.number IS NULL THEN
    RETURN NULL;
  END IF;

  v_facts := jsonb_build_object(
    'now', clock_timestamp(),
    'run', to_jsonb(v_run) - ARRAY['key', 'graph_hash', 'result'],
    'error_node', (
      SELECT failed_node.name
      FROM horsies_workflow_nodes failed_node
      WHERE failed_node.workflow_id = p_workflow AND failed_node.number = v_run.error_node
    ),
    'node',
    to_jsonb(v_node)
      - ARRAY['options', 'kwargs', 'inputs', 'graph', 'value', 'error', 'undo']
      || jsonb_build_object(
        'by_hand',
        v_node.status = 'SKIPPED' AND v_node.error_code IS NOT DISTINCT FROM 'SKIPPED_BY_HAND'
      ),
    'added_by', (
      SELECT adding_node.name
      FROM horsies_workflow_nodes adding_node
      WHERE adding_node.workflow_id = p_workflow AND adding_node.number = v_node.added_by
    ),
    'when_node', (
      SELECT deciding_node.name
      FROM horsies_workflow_nodes deciding_node
      WHERE deciding_node.workflow_id = p_workflow AND deciding_node.number = v_node.when_node
    ),
    'undoes', (
      SELECT undone_node.name
      FROM horsies_workflow_nodes undone_node
      WHERE undone_node.workflow_id = p_workflow AND undone_node.number = v_node.undoes
    ),
    'heard_at', (
      SELECT max(heartbeat.sent_at)
      FROM horsies_living_workers('*', NULL) AS living_worker (id)
      JOIN horsies_heartbeats heartbeat ON heartbeat.id = living_worker.id
    ),
    'task', (
      SELECT task.id
      FROM horsies_tasks task
      WHERE task.workflow_id = p_workflow AND task.node = p_number AND task.finished_at IS NULL
      ORDER BY task.node_index
      LIMIT 1
    ),
    'child', (
      SELECT jsonb_build_object(
        'id', child_run.id,
        'name', child_run.name,
        'status', child_run.status,
        'finished_at', child_run.finished_at,
        'error_code', child_run.error_code
      )
      FROM horsies_workflows child_run
      WHERE v_node.kind = 'workflow' AND child_run.id = v_node.task_id
    ),
    'change', (
      SELECT jsonb_build_object('at', entry.at, 'actor', entry.actor, 'reason', entry.reason)
      FROM horsies_audit entry
      WHERE entry.subject = p_workflow::text
        AND CASE v_node.status
          WHEN 'SKIPPED'
            THEN entry.action = 'workflow.skip' AND entry.after ->> 'node' = p_number::text
          ELSE entry.action = 'workflow.pause'
        END
      ORDER BY entry.at DESC
      LIMIT 1
    )
  );

  IF v_node.status IN ('PENDING', 'SKIPPED') THEN
    v_facts := v_facts || jsonb_build_object(
      'waits', (
        SELECT coalesce(jsonb_agg(to_jsonb(open_node)), '[]')
        FROM (
          SELECT upstream_node.number, upstream_node.name, upstream_node.status
          FROM horsies_workflow_edges edge
          JOIN horsies_workflow_nodes upstream_node
            ON upstream_node.workflow_id = p_workflow AND upstream_node.number = edge.upstream
          WHERE edge.workflow_id = p_workflow
            AND edge.downstream = p_number
            AND upstream_node.finished_at IS NULL
          ORDER BY upstream_node.number
          LIMIT p_many
        ) AS open_node
      ),
      'bad', (
        SELECT coalesce(jsonb_agg(to_jsonb(failed_node)), '[]')
        FROM (
          SELECT
            upstream_node.number,
            upstream_node.name,
            upstream_node.status,
            upstream_node.error_code
          FROM horsies_workflow_edges edge
          JOIN horsies_workflow_nodes upstream_node
            ON upstream_node.workflow_id = p_workflow AND upstream_node.number = edge.upstream
          WHERE edge.workflow_id = p_workflow
            AND edge.downstream = p_number
            AND upstream_node.finished_at IS NOT NULL
            AND upstream_node.status <> 'COMPLETED'
          ORDER BY upstream_node.finished_at, upstream_node.number
          LIMIT p_many
        ) AS failed_node
      )
    );
  ELSIF v_node.status = 'READY' THEN
    v_facts := v_facts || jsonb_build_object('in_flight', (
      SELECT coalesce(sum(CASE WHEN n.kind IN ('map', 'undo') THEN n.in_flight ELSE 1 END), 0)
      FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_workflow
        AND n.finished_at IS NULL
        AND (n.status = 'ENQUEUED' OR n.status = 'READY' AND n.kind IN ('map', 'undo'))
    ));
  END IF;
  RETURN v_facts;
END
$$;
