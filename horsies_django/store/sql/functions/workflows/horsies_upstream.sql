-- Returns the upstream nodes of a node. OFFSET 0 has the reason given in horsies_downstream.
-- Returns: counts is whether the quorum of the node counts this upstream node.
-- Index: horsies_workflow_edges_up, then the primary key of nodes.
CREATE OR REPLACE FUNCTION horsies_upstream(p_workflow uuid, p_number bigint)
RETURNS TABLE (counts boolean, status text, finished_at timestamptz) LANGUAGE sql STABLE AS $$
  SELECT e.counts, n.status::text, n.finished_at
  FROM horsies_workflow_edges e
  CROSS JOIN LATERAL (
    SELECT u.status, u.finished_at
    FROM horsies_workflow_nodes u
    WHERE u.workflow_id = e.workflow_id AND u.number = e.upstream
    OFFSET 0
  ) AS n
  WHERE e.workflow_id = p_workflow AND e.downstream = p_number
  OFFSET 0
$$;
