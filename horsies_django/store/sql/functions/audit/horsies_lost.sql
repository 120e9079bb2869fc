-- Records for horsies_status that an audit entry or a snapshot was lost, and why. The last loss of
-- each kind is kept. Never fails, so that it can be called where the record itself failed, and
-- hardly waits for another transaction that records a loss: that one is enough.
--
-- Args: p_kind: 'audit' or 'snapshot'.
-- Locks: the row; gives up after the lock timeout.
CREATE OR REPLACE FUNCTION horsies_lost(p_kind text, p_what text, p_error text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET lock_timeout = '500ms' AS $$
BEGIN
  INSERT INTO horsies_lost_records (kind, at, what, error)
  VALUES (p_kind, clock_timestamp(), p_what, p_error)
  ON CONFLICT (kind) DO UPDATE
  SET at = excluded.at, what = excluded.what, error = excluded.error;
EXCEPTION WHEN OTHERS THEN
  NULL;  -- the log of the caller still contains it
END
$$;
