-- Returns the last place of a node's elements that have to be undone, plus one; NULL: there are none.
-- Locks: none. Index: those of horsies_begun.
CREATE OR REPLACE FUNCTION horsies_begun_total(p_workflow uuid, p_number bigint) RETURNS int LANGUAGE sql STABLE AS $$
  SELECT greatest(
    (SELECT t.node_index FROM horsies_tasks t
     WHERE t.workflow_id = p_workflow AND t.node = p_number AND horsies_has_begun(t.id, t.status, t.error_code)
     ORDER BY t.node_index DESC LIMIT 1),
    (SELECT max(r.key::int) FROM horsies_workflow_nodes n CROSS JOIN LATERAL jsonb_object_keys(n.undo -> 'begun') AS r (key)
     WHERE n.workflow_id = p_workflow AND n.number = p_number)) + 1
$$;
