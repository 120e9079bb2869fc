-- Sends several runs, each with its nodes, and returns a row per run, in the order of the ids. See
-- horsies_send_run, whose NULL arguments here are those of runs that another run starts.
-- Locks: rows of the new runs.
-- Index: horsies_workflows_key, primary keys.
SELECT s.id, s.hash, s.created
FROM unnest(%(ids)s::uuid[], %(runs)s::text[], %(nodes)s::text[])
  WITH ORDINALITY AS r (id, run, nodes, place)
CROSS JOIN LATERAL horsies_send_run(
  r.id, r.run::jsonb, r.nodes::jsonb, '{}', NULL, NULL, NULL,
  %(limit)s::int, %(max_bytes)s::int, horsies_channel(), %(now)s::timestamptz
) AS s
ORDER BY r.place
