-- Inserts a run with nodes, see horsies_create_run and horsies_add_nodes, and sends its first tasks, p_limit at most; NULL: more nodes follow.
-- created: whether it was inserted; else there is a run of that name and key, and nothing is inserted.
-- Locks: none but the new rows. Index: horsies_workflows_key, primary keys.
CREATE FUNCTION horsies_send_run(p_id uuid, p_run jsonb, p_nodes jsonb, p_values jsonb, p_parent uuid, p_parent_node bigint, p_limit int,
                                 p_max_bytes int, p_channel text, p_now timestamptz, OUT id uuid, OUT hash text, OUT created boolean)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  SELECT c.* INTO id, hash, created FROM horsies_create_run(p_id, p_run, p_parent, p_parent_node, p_now) AS c;
  IF created THEN
    PERFORM horsies_add_nodes(p_id, -1, p_nodes, p_values, p_now);
    IF p_limit IS NOT NULL THEN
      PERFORM horsies_begin_run(p_id, p_limit, p_max_bytes, p_channel, p_now);
    END IF;
  END IF;
END
$$;
