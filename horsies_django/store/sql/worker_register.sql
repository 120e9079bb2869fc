-- A worker starts: its row appears. Every start is a new worker with a new id.
-- Locks: none but the new row.
INSERT INTO horsies_workers (id, hostname, pid, version, queues, processes, threads, async_concurrency)
VALUES (%(worker)s::uuid, %(hostname)s::text, %(pid)s::int, %(version)s::text, to_jsonb(%(queues)s::text[]),
        %(processes)s::int, %(threads)s::int, %(async_concurrency)s::int)
