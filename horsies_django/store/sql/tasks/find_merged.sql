-- Reads the status and the result of the tasks into which tasks were merged.
-- It is one statement, because a merge is undone if the task into which it went does not run. UNION
-- ends the search in a circle, which no statement of ours writes.
-- Args: ids: of the tasks that were merged; the rows have these ids.
WITH RECURSIVE seen AS (
  SELECT given.id, given.id AS met
  FROM unnest(%(ids)s::uuid[]) AS given (id)
  UNION
  SELECT seen.id, task.merged_into
  FROM seen
  JOIN horsies_tasks task ON task.id = seen.met AND task.merged_into IS NOT NULL
)
SELECT seen.id, task.status, task.result::text
FROM seen
JOIN horsies_tasks task ON task.id = seen.met AND task.merged_into IS NULL
