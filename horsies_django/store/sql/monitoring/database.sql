-- Reads the state of the server, using only columns that every role may see.
-- The type of other sessions is hidden without the rights of pg_monitor. Then the sessions that are
-- in a database count as connections.
SELECT
  clock_timestamp(),
  current_setting('server_version'),
  pg_is_in_recovery(),
  current_setting('transaction_read_only')::boolean,
  pg_notification_queue_usage(),
  (
    SELECT count(*)
    FROM pg_stat_activity session
    WHERE CASE
      WHEN session.backend_type IS NULL THEN session.datid IS NOT NULL
      ELSE session.backend_type = 'client backend'
    END
  ),
  current_setting('max_connections')::int,
  coalesce(tasks.n_live_tup, 0),
  coalesce(tasks.n_dead_tup, 0),
  tasks.last_autovacuum
FROM (SELECT 'horsies_tasks'::regclass::oid AS id) AS relation
LEFT JOIN pg_stat_all_tables tasks ON tasks.relid = relation.id
