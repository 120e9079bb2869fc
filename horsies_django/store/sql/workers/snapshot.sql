-- Inserts a snapshot of the state of a worker, and writes the memory of its children into their
-- heartbeats.
-- Locks: the rows of its children.
WITH known AS (
  UPDATE horsies_heartbeats beat
  SET memory_mb = child.memory_mb
  FROM unnest(%(ids)s::uuid[], %(memories)s::float8[]) AS child (id, memory_mb)
  WHERE beat.id = child.id
)
INSERT INTO horsies_worker_states (
  id, worker_id, running_sync, running_async, buffered, children,
  memory_usage_mb, children_memory_mb, cpu_percent
)
VALUES (
  horsies_uuid7(0), %(worker)s::uuid,
  %(running_sync)s::int, %(running_async)s::int, %(buffered)s::int, %(children)s::int,
  %(memory_usage_mb)s::float8, %(children_memory_mb)s::float8, %(cpu_percent)s::float8
)
