-- Returns whether an upstream node of a node failed, among those that its join counts; a skipped one did not.
-- OFFSET 0: without it, a plan may read all nodes of the run for each edge.
-- Locks: none. Index: horsies_workflow_edges_down, then the primary key of nodes.
CREATE OR REPLACE FUNCTION horsies_has_failed_upstream(p_workflow uuid, p_number bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (
    SELECT FROM horsies_workflow_edges e CROSS JOIN LATERAL (
      SELECT FROM horsies_workflow_nodes u
      WHERE u.workflow_id = e.workflow_id AND u.number = e.upstream AND u.status IN ('FAILED', 'CANCELLED', 'EXPIRED') OFFSET 0) AS u
    WHERE e.workflow_id = p_workflow AND e.downstream = p_number AND e.counts)
$$;
