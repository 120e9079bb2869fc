-- Advances a run; see functions/workflows/horsies_advance.sql.
-- Locks: the row of the run, skipping a locked one, then task rows, skipping locked ones. Index: primary keys.
SELECT a.busy, a.many, a.more, a.finished, a.parent, a.halted
FROM horsies_advance(%(workflow)s::uuid, %(tasks)s::uuid[], %(children)s::uuid[], %(limit)s::int, %(max_bytes)s::int, %(channel)s::text,
                     %(now)s::timestamptz) AS a
