-- Returns the oldest signal of a name that no node has taken.
--
-- Args: p_key is the key of the signal; NULL for a signal with any key or none. p_unseen leaves out
-- signals that an advance has seen.
-- Returns: NULLs if there is no such signal.
-- Index: horsies_signals_unused, horsies_signals_keyed.
CREATE OR REPLACE FUNCTION horsies_next_signal(
  p_workflow uuid, p_name text, p_key text, p_unseen boolean, OUT id uuid, OUT sent_at timestamptz
) LANGUAGE sql STABLE AS $$
  (
    SELECT s.id, s.sent_at
    FROM horsies_workflow_signals s
    WHERE p_key IS NULL
      AND s.workflow_id = p_workflow
      AND s.name = p_name
      AND s.used_at IS NULL
      AND (NOT p_unseen OR s.seen_at IS NULL)
    ORDER BY s.sent_at, s.id
    LIMIT 1
  )
  UNION ALL
  (
    SELECT s.id, s.sent_at
    FROM horsies_workflow_signals s
    WHERE s.key = p_key
      AND s.workflow_id = p_workflow
      AND s.name = p_name
      AND s.used_at IS NULL
      AND (NOT p_unseen OR s.seen_at IS NULL)
    ORDER BY s.sent_at, s.id
    LIMIT 1
  )
$$;
