-- Inserts a snapshot of a worker's state.
-- Locks: none but the new row.
INSERT INTO horsies_worker_states (id, worker_id, running_sync, running_async, buffered, children, memory_usage_mb, children_memory_mb, cpu_percent)
VALUES (horsies_uuid7(0), %(worker)s::uuid, %(running_sync)s::int, %(running_async)s::int, %(buffered)s::int, %(children)s::int,
        %(memory_usage_mb)s::float8, %(children_memory_mb)s::float8, %(cpu_percent)s::float8)
