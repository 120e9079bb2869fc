-- Writes the heartbeat of a worker; see functions/recover/horsies_beat.sql.
-- Locks: this worker's own rows. Index: primary keys, horsies_heartbeats_worker, horsies_heartbeats_parents.
SELECT b.alive, b.on_duty, b.place
FROM horsies_beat(%(worker)s::uuid, %(ids)s::uuid[], %(pids)s::int[], %(holding)s::text[], %(running_sync)s::int, %(running_async)s::int,
                  %(memory_usage_mb)s::float8, %(children_memory_mb)s::float8, %(fresh)s::interval, %(listens)s::boolean) AS b
