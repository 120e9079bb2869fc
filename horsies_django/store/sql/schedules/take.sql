-- Take a schedule that is due, so that no other scheduler looks at it before this transaction ends; no row: another one does, or did.
-- Whoever stands still in the middle, as a machine that is put to sleep does, is let hold it for ten seconds: then the server ends
-- that session. The setting ends with the transaction, so it reaches nobody else behind a pooler.
-- Locks: the schedule's row, never waiting. Index: primary key.
SELECT s.name, s.definition, s.since, s.last_slot, s.rules, coalesce(%(now)s::timestamptz, clock_timestamp()) AS now,
       set_config('idle_in_transaction_session_timeout', '10s', true)
FROM horsies_schedules s
WHERE s.name = %(name)s::text AND s.next_at <= coalesce(%(now)s::timestamptz, clock_timestamp())
FOR NO KEY UPDATE SKIP LOCKED
