-- Inserts a run with nodes, see horsies_add_nodes, and sends its first tasks. If the run has a key,
-- and there is a run of that name and key, it returns the id and the hash of that run instead. It
-- waits for an open transaction that sends the same key. In a SERIALIZABLE transaction it sets
-- owed_at instead of sending the first tasks; see horsies_begin_run.
-- Args: p_run is an object as Graph.head() in workflows/nodes.py writes it. p_nodes, p_values: see
-- horsies_add_nodes. p_limit is the maximum of tasks; NULL: more nodes follow. p_continues is the
-- run that this one follows, without a parent.
-- Returns: created is false if another run has the key.
-- Moves: the run (none) -> RUNNING.
-- Locks: none but the new rows.
-- Index: horsies_workflows_key, primary keys.
CREATE OR REPLACE FUNCTION horsies_send_run(
  p_id uuid, p_run jsonb, p_nodes jsonb, p_values jsonb,
  p_parent uuid, p_parent_node bigint, p_continues uuid,
  p_limit int, p_max_bytes int, p_channel text, p_now timestamptz,
  OUT id uuid, OUT hash text, OUT created boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
  INSERT INTO horsies_workflows AS w (
    id, name, key, graph_hash, status, on_error, output, max_in_flight,
    good_until,
    parent_id, parent_node, continues, sent_at,
    owed_at)
  SELECT
    p_id, r.name, r.key, r.hash, 'RUNNING', r.on_error, r.output, r.max_in_flight,
    least(
      r.good_until,
      v_now + r.good_for,
      (SELECT p.good_until FROM horsies_workflows p WHERE p.id = p_parent)),
    p_parent, p_parent_node, p_continues, v_now,
    CASE WHEN current_setting('transaction_isolation') = 'serializable' THEN v_now END
  FROM jsonb_to_record(p_run) AS r (
    name text, key text, hash text, on_error text, output bigint, max_in_flight int,
    good_until timestamptz, good_for interval)
  ON CONFLICT (key, name) WHERE key IS NOT NULL DO NOTHING
  RETURNING w.id, w.graph_hash INTO id, hash;

  created := id IS NOT NULL;
  IF NOT created THEN
    SELECT w.id, w.graph_hash
    INTO id, hash
    FROM horsies_workflows w
    WHERE w.key = p_run ->> 'key' AND w.name = p_run ->> 'name';
    RETURN;
  END IF;

  PERFORM horsies_add_nodes(p_id, -1, p_nodes, p_values, p_now);

  IF p_limit IS NOT NULL THEN
    PERFORM horsies_begin_run(p_id, p_limit, p_max_bytes, p_channel, p_now);
  END IF;
END
$$;
