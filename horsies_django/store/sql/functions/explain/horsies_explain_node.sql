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
      SELECT e.name
      FROM horsies_workflow_nodes e
      WHERE e.workflow_id = p_workflow AND e.number = v_run.error_node
    ),
    'node',
    to_jsonb(v_node)
      - ARRAY['options', 'kwargs', 'inputs', 'graph', 'value', 'error', 'undo']
      || jsonb_build_object(
        'by_hand',
        v_node.status = 'SKIPPED' AND v_node.error_code IS NOT DISTINCT FROM 'SKIPPED_BY_HAND'
      ),
    'added_by', (
      SELECT a.name
      FROM horsies_workflow_nodes a
      WHERE a.workflow_id = p_workflow AND a.number = v_node.added_by
    ),
    'when_node', (
      SELECT u.name
      FROM horsies_workflow_nodes u
      WHERE u.workflow_id = p_workflow AND u.number = v_node.when_node
    ),
    'undoes', (
      SELECT u.name
      FROM horsies_workflow_nodes u
      WHERE u.workflow_id = p_workflow AND u.number = v_node.undoes
    ),
    'heard_at', (
      SELECT max(h.sent_at)
      FROM horsies_living_workers('*', NULL) AS s (id)
      JOIN horsies_heartbeats h ON h.id = s.id
    ),
    'task', (
      SELECT t.id
      FROM horsies_tasks t
      WHERE t.workflow_id = p_workflow AND t.node = p_number AND t.finished_at IS NULL
      ORDER BY t.node_index
      LIMIT 1
    ),
    'child', (
      SELECT jsonb_build_object(
        'id', c.id,
        'name', c.name,
        'status', c.status,
        'finished_at', c.finished_at,
        'error_code', c.error_code
      )
      FROM horsies_workflows c
      WHERE v_node.kind = 'workflow' AND c.id = v_node.task_id
    ),
    'change', (
      SELECT jsonb_build_object('at', a.at, 'actor', a.actor, 'reason', a.reason)
      FROM horsies_audit a
      WHERE a.subject = p_workflow::text
        AND CASE v_node.status
          WHEN 'SKIPPED' THEN a.action = 'workflow.skip' AND a.after ->> 'node' = p_number::text
          ELSE a.action = 'workflow.pause'
        END
      ORDER BY a.at DESC
      LIMIT 1
    )
  );

  IF v_node.status IN ('PENDING', 'SKIPPED') THEN
    v_facts := v_facts || jsonb_build_object(
      'waits', (
        SELECT coalesce(jsonb_agg(to_jsonb(u)), '[]')
        FROM (
          SELECT n.number, n.name, n.status
          FROM horsies_workflow_edges e
          JOIN horsies_workflow_nodes n ON n.workflow_id = p_workflow AND n.number = e.upstream
          WHERE e.workflow_id = p_workflow
            AND e.downstream = p_number
            AND n.finished_at IS NULL
          ORDER BY n.number
          LIMIT p_many
        ) AS u
      ),
      'bad', (
        SELECT coalesce(jsonb_agg(to_jsonb(u)), '[]')
        FROM (
          SELECT n.number, n.name, n.status, n.error_code
          FROM horsies_workflow_edges e
          JOIN horsies_workflow_nodes n ON n.workflow_id = p_workflow AND n.number = e.upstream
          WHERE e.workflow_id = p_workflow
            AND e.downstream = p_number
            AND n.finished_at IS NOT NULL
            AND n.status <> 'COMPLETED'
          ORDER BY n.finished_at, n.number
          LIMIT p_many
        ) AS u
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
