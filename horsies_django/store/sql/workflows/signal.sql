-- Sends a signal to a run; see functions/workflows/horsies_signal.sql.
-- Locks: none but the new row. Index: primary key, horsies_workflow_nodes_signal.
SELECT s.verdict, s.names
FROM horsies_signal(%(workflow)s::uuid, %(name)s::text, %(key)s::text, %(data)s::jsonb, %(actor)s::text, %(look)s::int,
                    %(channel)s::text, %(now)s::timestamptz) AS s
