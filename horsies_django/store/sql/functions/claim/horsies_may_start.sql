-- Returns whether the run of a task lets it start: not while the run is paused, and not after it was cancelled, has continued as another one
-- or was stopped by a failure. While it is undone, only undo nodes start; after a stop, those that run when others ended. The tasks of a run
-- that was deleted start.
-- Tasks without a run are not asked about. A pause does not touch a task that another transaction holds, and a task may come back during it;
-- so the claim asks, with its own snapshot: what it starts was claimed before the pause was committed.
-- It is plpgsql because a function in SQL with a subquery is planned again in each statement.
-- Locks: none. Index: primary keys.
CREATE FUNCTION horsies_may_start(p_workflow uuid, p_node bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce((
    SELECT CASE
      WHEN w.status IN ('PAUSED', 'CANCELLED') OR w.continued_as IS NOT NULL THEN false
      WHEN w.status = 'COMPENSATING' THEN EXISTS (
        SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.number = p_node AND n.kind = 'undo')
      WHEN w.on_error = 'stop' AND w.error_code IS NOT NULL THEN EXISTS (
        SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.number = p_node AND n.rule IN ('failed', 'finished'))
      ELSE true END
    FROM horsies_workflows w WHERE w.id = p_workflow), true);
END
$$;
