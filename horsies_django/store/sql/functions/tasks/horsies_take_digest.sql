-- Gives a digest to a task, unless another one has it: one that holds the work if p_until is given,
-- see horsies_holds_work, or else one that got the digest less than p_keep ago.
--
-- It waits for an open transaction that writes the digest, because only its end decides which task
-- has it. The values read before a wait count only if the row of the digest is the same after it;
-- else it reads again.
--
-- Args: p_until: 'start', 'end' or NULL.
--   p_keep: how long a task has a digest without p_until; NULL: for ever.
--   p_patience: the longest time of each wait; then it raises lock_not_available.
-- Returns: holder: the task that has the digest now, p_id if that got it; arguments: the digest of
--   the holder's arguments.
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
    RETURNING k.*
    INTO v_key;
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
    RETURNING k.*
    INTO v_key;
    EXIT WHEN FOUND;
  END LOOP;

  v_set := set_config('lock_timeout', v_patience, true);
  holder := v_key.task_id;
  arguments := v_key.arguments;
END
$$;
