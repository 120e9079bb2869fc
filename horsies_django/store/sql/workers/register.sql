-- Inserts the row of a worker that starts, with the first heartbeat of its parent process, before
-- it claims anything. Every start is a new worker with a new id. Workers that can run the same
-- tasks are a team.
-- Locks: none but the new rows.
WITH parent AS (
  INSERT INTO horsies_heartbeats (id, worker_id, role, pid, sent_at, team)
  VALUES (
    %(worker)s::uuid, %(worker)s::uuid, 'claimer', %(pid)s::int, clock_timestamp(),
    hashtextextended(
      concat_ws(
        ' ', %(queues)s::text[]::text, %(task_names)s::text[]::text, %(wire)s::smallint
      ),
      0
    )
  )
)
INSERT INTO horsies_workers (
  id, hostname, pid, version,
  queues, task_names, wire,
  processes, threads, async_concurrency
)
VALUES (
  %(worker)s::uuid, %(hostname)s::text, %(pid)s::int, %(version)s::text,
  to_jsonb(%(queues)s::text[]), to_jsonb(%(task_names)s::text[]), %(wire)s::smallint,
  %(processes)s::int, %(threads)s::int, %(async_concurrency)s::int
)
