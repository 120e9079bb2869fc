-- Gives a digest to a task, unless another one has it. With p_until, that one holds the work
-- ('start', 'end'), see horsies_holds_work; without, it got the digest less than p_keep ago (NULL:
-- ever). holder: the task that has it now, p_id if that got it, with the digest of its arguments.
-- It waits for an open transaction that writes the digest, whose end alone says who has it:
-- p_patience at most for each wait, then it raises lock_not_available. What it read before a wait
-- counts only if the row of the digest is the same after it; else it reads again.
-- Locks: the row of the digest if it is written; see horsies_holds_work.
CREATE OR REPLACE FUNCTION horsies_take_digest(
  p_digest bytea, p_id uuid, p_arguments bytea, p_until text, p_keep interval, p_patience text,
  p_now timestamptz, OUT holder uuid, OUT arguments bytea
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_patience text := current_setting('lock_timeout');
  v_key horsies_send_keys;
  v_holds boolean;
  v_set text;  -- PERFORM would run a statement
BEGIN
  v_set := set_config('lock_timeout', p_patience, true);
  LOOP
    INSERT INTO horsies_send_keys AS k (digest, task_id, arguments, sent_at)
    VALUES (p_digest, p_id, p_arguments, p_now)
    ON CONFLICT DO NOTHING
    RETURNING k.* INTO v_key;
    EXIT WHEN FOUND;

    SELECT k.* INTO v_key FROM horsies_send_keys k WHERE k.digest = p_digest;
    CONTINUE WHEN NOT FOUND;  -- it was deleted meanwhile

    IF p_until IS NULL THEN
      v_holds := coalesce(v_key.sent_at > p_now - p_keep, true);
    ELSE
      v_holds := v_key.task_id <> p_id AND horsies_holds_work(v_key.task_id, p_until, p_now);
    END IF;
    EXIT WHEN v_holds;

    UPDATE horsies_send_keys k
    SET task_id = p_id, arguments = p_arguments, sent_at = p_now
    WHERE k.digest = p_digest AND k.task_id = v_key.task_id AND k.sent_at = v_key.sent_at
    RETURNING k.* INTO v_key;
    EXIT WHEN FOUND;
  END LOOP;
  v_set := set_config('lock_timeout', v_patience, true);
  holder := v_key.task_id;
  arguments := v_key.arguments;
END
$$;
