-- Returns the address (ctid) of the row of a node, for a join by ctid.
-- A statement that updates the nodes of a list joins them in this way. By run and number, it may
-- read all nodes that exist, or all nodes of the run for each one of the list, if the table seemed
-- empty when the statement was planned.
--
-- Locks: none; the caller holds the lock of the run, so that no other transaction moves the row
-- meanwhile.
CREATE OR REPLACE FUNCTION horsies_address(p_workflow uuid, p_number bigint)
RETURNS TABLE (address tid) LANGUAGE sql STABLE AS $$
  SELECT n.ctid
  FROM horsies_workflow_nodes n
  WHERE n.workflow_id = p_workflow AND n.number = p_number
  OFFSET 0
$$;
