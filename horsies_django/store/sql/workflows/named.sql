-- Returns the number of the node that a node of a run added under a name, with its work and the
-- nodes or signal for which it waits, as JSON with the keys of Node.json().
-- Index: horsies_workflow_nodes_named.
SELECT
  n.number,
  jsonb_build_object(
    'kind', n.kind,
    'task', nullif(n.task_name, ''),
    'kwargs', n.kwargs,
    'inputs', n.inputs,
    'graph', n.graph,
    'value', CASE WHEN n.kind = 'map' THEN n.value END,
    'signal', n.signal,
    'signal_key', n.signal_key
  )::text
FROM horsies_workflow_nodes n
WHERE n.workflow_id = %(workflow)s::uuid
  AND n.added_by = %(added_by)s::bigint
  AND n.name = %(name)s::text
