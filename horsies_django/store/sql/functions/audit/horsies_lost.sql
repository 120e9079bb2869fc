-- Records for horsies_status that an audit entry or a snapshot was lost, and why; the last one of a kind is kept. Never fails, so that it can
-- be called where the record itself failed, and waits for nobody: while another transaction records a loss of the kind, that one is enough.
-- Locks: an advisory lock, without waiting; the row. Index: primary key.
CREATE FUNCTION horsies_lost(p_kind text, p_what text, p_error text) RETURNS void LANGUAGE plpgsql VOLATILE SET lock_timeout = '500ms' AS $$
BEGIN
  IF pg_try_advisory_xact_lock(hashtextextended('lost ' || p_kind, 'horsies_tasks'::regclass::oid::bigint)) THEN
    INSERT INTO horsies_lost_records (kind, at, what, error) VALUES (p_kind, clock_timestamp(), p_what, p_error)
    ON CONFLICT (kind) DO UPDATE SET at = excluded.at, what = excluded.what, error = excluded.error;
  END IF;
EXCEPTION WHEN OTHERS THEN
  NULL;  -- the log of the caller still tells it
END
$$;
