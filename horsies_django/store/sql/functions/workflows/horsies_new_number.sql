-- Returns a number for a node that is added to a run.
-- The numbers of the graph that was sent are smaller. Numbers that the run has are skipped: after a
-- move by logical replication, which copies rows only, the sequence begins again.
CREATE OR REPLACE FUNCTION horsies_new_number(p_workflow uuid) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_number bigint;
BEGIN
  LOOP
    v_number := nextval('horsies_workflow_node_numbers');
    EXIT WHEN NOT EXISTS (
      SELECT FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_workflow AND n.number = v_number
    );
  END LOOP;
  RETURN v_number;
END
$$;
