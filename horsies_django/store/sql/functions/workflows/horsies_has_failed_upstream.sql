-- Returns whether an upstream node of a node failed, among those that its join counts; a skipped one did not.
-- Locks: none. Index: those of horsies_upstream.
CREATE OR REPLACE FUNCTION horsies_has_failed_upstream(p_workflow uuid, p_number bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (
    SELECT FROM horsies_upstream(p_workflow, p_number) AS u WHERE u.counts AND u.status IN ('FAILED', 'CANCELLED', 'EXPIRED'))
$$;
