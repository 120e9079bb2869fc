-- Returns where the row of a node is, for a join by ctid. A statement that updates nodes of a list joins them so: by run and number, it may
-- read all nodes there are, or all of the run for each, if the table seemed empty when it was planned. The caller holds the lock of the run,
-- so that no other transaction moves the row meanwhile.
CREATE OR REPLACE FUNCTION horsies_address(p_workflow uuid, p_number bigint) RETURNS TABLE (address tid) LANGUAGE sql STABLE AS $$
  SELECT n.ctid FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.number = p_number OFFSET 0
$$;
