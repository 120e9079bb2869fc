-- Reads results for an argument annotated Results[T], or, without a parameter, of the tasks of a
-- map. They are in order: those from a place on, some at a time.
-- Args: parameter: the name of the argument; NULL: the tasks of the map.
-- Index: primary keys, horsies_tasks_node.
SELECT r.place, r.status, r.result::text
FROM horsies_workflow_nodes n
CROSS JOIN LATERAL (
  SELECT coalesce(
    n.inputs -> %(parameter)s::text, jsonb_build_object('node', n.number)
  ) AS spec
) AS s
CROSS JOIN LATERAL horsies_results(
  n.workflow_id, s.spec, %(from)s::bigint, %(many)s::int
) AS r
WHERE n.workflow_id = %(workflow)s::uuid AND n.number = %(node)s::bigint
ORDER BY r.place
