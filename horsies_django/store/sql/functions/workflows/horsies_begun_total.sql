-- Returns the last place of a node's elements that have to be undone, plus one; NULL: there are none.
-- Locks: none. Index: those of horsies_begun.
CREATE OR REPLACE FUNCTION horsies_begun_total(p_workflow uuid, p_number bigint, p_replaced jsonb) RETURNS int LANGUAGE sql STABLE AS $$
  SELECT greatest(
    (SELECT t.node_index FROM horsies_tasks t
     WHERE t.workflow_id = p_workflow AND t.node = p_number AND horsies_has_begun(t.id, t.status, t.error_code)
     ORDER BY t.node_index DESC LIMIT 1),
    (SELECT max(r.key::int) FROM jsonb_object_keys(p_replaced) AS r (key))) + 1
$$;
