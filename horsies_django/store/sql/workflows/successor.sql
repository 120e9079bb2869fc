-- Returns the run as which a run continued, NULL: it did not; or the last one of those that followed one another. No row: no such run.
WITH RECURSIVE chain (id, next, place) AS (
  SELECT w.id, w.continued_as, 0 FROM horsies_workflows w WHERE w.id = %(workflow)s::uuid
  UNION ALL
  SELECT w.id, w.continued_as, c.place + 1 FROM chain c CROSS JOIN LATERAL (
    SELECT w.id, w.continued_as FROM horsies_workflows w WHERE w.id = c.next OFFSET 0) AS w  -- a join may read all runs
  WHERE %(last)s::boolean
)
SELECT CASE WHEN %(last)s::boolean THEN c.id ELSE c.next END FROM chain c ORDER BY c.place DESC LIMIT 1
