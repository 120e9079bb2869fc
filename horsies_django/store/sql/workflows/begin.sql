-- Sends the first tasks of a new run; see functions/workflows/horsies_begin_run.sql. In a SERIALIZABLE transaction a worker sends them, as soon
-- as it commits: whoever reads new nodes, which stand in the indexes beside those of other new runs, makes others that send fail with 40001.
-- Locks: the row of the run. Index: horsies_workflow_nodes_open.
SELECT CASE WHEN current_setting('transaction_isolation') = 'serializable'
            THEN pg_notify(%(channel)s::text || '_new', 'advance ' || %(workflow)s::uuid)
            ELSE horsies_begin_run(%(workflow)s::uuid, %(limit)s::int, %(max_bytes)s::int, %(channel)s::text, %(now)s::timestamptz) END
