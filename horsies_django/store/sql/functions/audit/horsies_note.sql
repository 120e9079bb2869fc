-- Writes an entry of the audit, in the transaction of the change that it records. That change must
-- not fail because of the entry: if it cannot be written, the loss is recorded. A role without the
-- privilege to write the audit is refused: no role may make changes that are never audited.
--
-- Returns: NULL if the entry is written, else the reason of its loss, for the log.
-- Locks: none but the new row; gives up after the lock timeout where the table is locked.
CREATE OR REPLACE FUNCTION horsies_note(
  p_action text, p_actor text, p_subject text, p_reason text, p_before jsonb, p_after jsonb
) RETURNS text LANGUAGE plpgsql VOLATILE
SET lock_timeout = '500ms' AS $$
BEGIN
  INSERT INTO horsies_audit (id, at, actor, action, subject, reason, before, after)
  VALUES (
    horsies_uuid7(0), clock_timestamp(), p_actor, p_action, p_subject, p_reason, p_before, p_after
  );

  RETURN NULL;
EXCEPTION
  WHEN insufficient_privilege THEN
    RAISE;
  WHEN OTHERS THEN
    PERFORM horsies_lost('audit', p_action || ' ' || p_subject, SQLERRM);
    RETURN SQLERRM;
END
$$;
