-- Reads the results of the tasks of a map, in order: those from a place on, some at a time.
-- Locks: none. Index: horsies_tasks_node.
SELECT r.place, r.status, r.result::text
FROM horsies_results(%(workflow)s::uuid, jsonb_build_object('node', %(node)s::bigint), %(from)s::bigint, %(many)s::int) AS r
ORDER BY r.place
