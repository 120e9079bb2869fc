-- Reads which transactions, standbys and replication slots keep dead rows of this database from
-- being removed: the oldest of each kind.
-- Every role sees that a session holds an xmin, and how many transactions ago that began. Only the
-- role of the session, and roles with the rights of pg_monitor, see since when, and its state.
-- Vacuums hold back nothing, logical slots only the catalogue.
SELECT DISTINCT ON (found.kind)
  found.kind, found.pid, found.name, found.role, found.state,
  extract(epoch FROM clock_timestamp() - found.since)::float8,
  found.transactions
FROM (
  SELECT
    CASE WHEN session.datid IS NULL THEN 'standby' ELSE 'transaction' END AS kind,
    session.pid,
    session.application_name AS name,
    session.usename::text AS role,
    session.state,
    session.xact_start AS since,
    greatest(age(session.backend_xmin), age(session.backend_xid)) AS transactions
  FROM pg_stat_activity session
  WHERE (session.backend_xmin IS NOT NULL OR session.backend_xid IS NOT NULL)
    AND session.pid <> pg_backend_pid()
    AND (session.datid IS NULL OR session.datname = current_database())
    AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum vacuum WHERE vacuum.pid = session.pid)
  UNION ALL
  SELECT
    'prepared transaction', NULL, ready.gid, ready.owner::text,
    NULL, ready.prepared, age(ready.transaction)
  FROM pg_prepared_xacts ready
  WHERE ready.database = current_database()
  UNION ALL
  SELECT
    'replication slot', slot.active_pid, slot.slot_name::text, NULL,
    CASE WHEN slot.active THEN 'active' ELSE 'inactive' END, NULL, age(slot.xmin)
  FROM pg_replication_slots slot
  WHERE slot.xmin IS NOT NULL
) AS found
ORDER BY found.kind, found.transactions DESC, found.since
