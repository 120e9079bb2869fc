-- Locks a schedule that is due until this transaction ends.
-- A scheduler that stops in the middle, for example on a suspended machine, keeps the lock for ten
-- seconds at most: then the server ends its session. The setting is local to the transaction, so it
-- affects no other client behind a pooler.
-- Returns: the schedule; no row if another scheduler holds it or has already sent it.
-- Locks: the row of the schedule, skipping a locked one.
SELECT
  s.name,
  s.declared || s.changes,
  s.since,
  s.last_fire_at,
  s.rules,
  coalesce(%(now)s::timestamptz, clock_timestamp()) AS now,
  set_config('idle_in_transaction_session_timeout', '10s', true)
FROM horsies_schedules s
WHERE s.name = %(name)s::text AND s.next_at <= coalesce(%(now)s::timestamptz, clock_timestamp())
FOR NO KEY UPDATE SKIP LOCKED
