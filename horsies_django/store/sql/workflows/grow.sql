-- Adds nodes to a run for a running task, if this is still its current attempt.
-- Returns: the numbers of the new nodes. NULL: a new gate has the signal name of a node of the run
-- that is no gate, or the reverse. No row: this is not the current attempt.
-- Locks: none but the new rows.
-- Index: primary keys, horsies_workflow_nodes_named, horsies_workflow_nodes_signal.
SELECT CASE
  WHEN NOT EXISTS (
    SELECT
    FROM jsonb_to_recordset(%(nodes)s::jsonb) AS a (signal text, kind text)
    JOIN horsies_workflow_nodes n
      ON n.workflow_id = t.workflow_id
      AND n.signal = a.signal
      AND (n.kind = 'gate') <> (a.kind = 'gate')
  )
  THEN horsies_add_nodes(t.workflow_id, t.node, %(nodes)s::jsonb, '{}', NULL)
END
FROM horsies_tasks t
WHERE t.id = %(task)s::uuid
  AND t.status = 'RUNNING'
  AND coalesce(t.attempts_before, 0) + t.retry_count + 1 = %(attempt)s::int
  AND t.node IS NOT NULL
