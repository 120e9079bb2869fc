-- Returns the transactions that keep others from the tables: they hold a lock that conflicts with
-- writing, or wait for one, because others queue behind them.
-- The start of a transaction of another role is hidden without the rights of pg_monitor. Such a
-- transaction counts as begun when the longest wait for the table began.
-- A vacuum is left out: it gives up its lock as soon as another transaction waits for it.
-- Args: older: the least age of the transactions; NULL: any age.
-- Returns: the oldest first, each with one of its locks.
SELECT
  found.pid, found.name, found.mode, found.relation, found.granted,
  extract(epoch FROM clock_timestamp() - found.since)::float8
FROM (
  SELECT DISTINCT ON (lock.pid, ready.gid)
    lock.pid,
    coalesce(session.application_name, ready.gid, '') AS name,
    lock.mode,
    relation.relname::text AS relation,
    lock.granted,
    coalesce(session.xact_start, ready.prepared, waiting.since) AS since
  FROM pg_locks lock
  JOIN pg_class tasks ON tasks.oid = 'horsies_tasks'::regclass
  JOIN pg_class relation
    ON relation.oid = lock.relation
    AND relation.relnamespace = tasks.relnamespace
    AND relation.relname ^@ 'horsies_'
  LEFT JOIN pg_stat_activity session ON session.pid = lock.pid
  LEFT JOIN pg_prepared_xacts ready
    ON lock.pid IS NULL
    AND EXISTS (  -- each transaction holds a lock on itself
      SELECT
      FROM pg_locks own
      WHERE own.pid IS NULL
        AND own.virtualtransaction = lock.virtualtransaction
        AND own.transactionid = ready.transaction
    )
  CROSS JOIN LATERAL (
    SELECT min(other.waitstart) AS since
    FROM pg_locks other
    WHERE other.relation = lock.relation
      AND other.database = lock.database
      AND NOT other.granted
  ) AS waiting
  WHERE lock.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
    AND lock.mode IN (
      'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'
    )
    AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum vacuum WHERE vacuum.pid = lock.pid)
  ORDER BY
    lock.pid, ready.gid, relation.relkind <> 'r', lock.granted DESC, relation.relname
) AS found
WHERE %(older)s::interval IS NULL OR found.since < clock_timestamp() - %(older)s::interval
ORDER BY found.since
LIMIT %(many)s::int
