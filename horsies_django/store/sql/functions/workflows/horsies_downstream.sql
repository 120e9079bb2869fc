-- Returns the nodes that have a node upstream.
-- Without OFFSET 0, a plan may read all nodes of the run for each edge.
CREATE OR REPLACE FUNCTION horsies_downstream(p_workflow uuid, p_number bigint)
RETURNS SETOF horsies_workflow_nodes LANGUAGE sql STABLE AS $$
  SELECT n.*
  FROM horsies_workflow_edges e
  CROSS JOIN LATERAL (
    SELECT d.*
    FROM horsies_workflow_nodes d
    WHERE d.workflow_id = e.workflow_id AND d.number = e.downstream
    OFFSET 0
  ) AS n
  WHERE e.workflow_id = p_workflow AND e.upstream = p_number
  OFFSET 0
$$;
