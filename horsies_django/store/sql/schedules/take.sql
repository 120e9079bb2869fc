-- Lock a schedule that is due until this transaction ends; no row means that another scheduler holds it or has already sent it.
-- A scheduler that stops in the middle, for example on a suspended machine, keeps the lock for ten seconds at most: then the server
-- ends its session. The setting is local to the transaction, so behind a pooler it affects no other client.
-- Locks: the schedule's row, skipping a locked one.
SELECT s.name, s.declared || s.changes, s.since, s.last_fire_at, s.rules, coalesce(%(now)s::timestamptz, clock_timestamp()) AS now,
       set_config('idle_in_transaction_session_timeout', '10s', true)
FROM horsies_schedules s
WHERE s.name = %(name)s::text AND s.next_at <= coalesce(%(now)s::timestamptz, clock_timestamp())
FOR NO KEY UPDATE SKIP LOCKED
