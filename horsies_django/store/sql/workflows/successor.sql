-- Returns the run as which a run continued; with "last", the last one of the runs that followed one
-- another.
-- Of runs that continue one another in a circle, which only others can write, the last one is any:
-- the same for all of them.
-- Returns: NULL if the run did not continue, without "last". No row: there is no such run.
-- Index: primary key.
WITH RECURSIVE chain (id, next) AS (
  SELECT run.id, run.continued_as
  FROM horsies_workflows run
  WHERE run.id = %(workflow)s::uuid
  UNION  -- not ALL: this ends in a circle, too
  SELECT run.id, run.continued_as
  FROM chain
  CROSS JOIN LATERAL (  -- a join may read all runs
    SELECT w.id, w.continued_as
    FROM horsies_workflows w
    WHERE w.id = chain.next
    OFFSET 0
  ) AS run
  WHERE %(last)s::boolean
)
SELECT CASE WHEN %(last)s::boolean THEN chain.id ELSE chain.next END
FROM chain
ORDER BY EXISTS (SELECT FROM chain AS later WHERE later.id = chain.next), chain.id
LIMIT 1
