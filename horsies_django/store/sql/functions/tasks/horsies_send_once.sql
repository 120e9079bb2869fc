-- Sends a task unless another one has its digest, in the caller's transaction; the other parameters are those of horsies_send. With p_until,
-- that one has it while it has never been claimed ('start'), or has not finished ('end'): no statement gives a digest back, the next send
-- takes it over. Without, it has the digest of a key for p_keep (NULL: for ever), whatever becomes of it.
-- verdict: 'SENT' (sent_to: what horsies_send returns); 'FOUND' ("id" is that of the other task, whose row may be gone), or 'CONFLICT' if that was sent with other arguments.
-- It waits for an open transaction that sends the same digest, p_patience at most, and raises lock_not_available then: only its end says
-- whether there is such a task.
-- Locks: the row of the digest if it is written.
CREATE OR REPLACE FUNCTION horsies_send_once(
  p_digest bytea, p_arguments bytea, p_until text, p_keep interval, p_patience text,
  p_ids uuid[], p_kwargs json, p_task_name text, p_queue_name text, p_lane text, p_priority smallint, p_delay interval,
  p_due_at timestamptz, p_good_until timestamptz, p_max_retries smallint, p_options jsonb, p_notified oid, p_good_for interval,
  p_now timestamptz, p_codec text, OUT id uuid, OUT verdict text, OUT sent_to oid
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_patience text := current_setting('lock_timeout');
  v_key horsies_send_keys;
  v_set text;  -- PERFORM would run a statement
BEGIN
  id := p_ids[1];
  v_set := set_config('lock_timeout', p_patience, true);
  LOOP
    INSERT INTO horsies_send_keys (digest, task_id, arguments, sent_at) VALUES (p_digest, id, p_arguments, v_now) ON CONFLICT DO NOTHING;
    EXIT WHEN FOUND;
    SELECT k.* INTO v_key FROM horsies_send_keys k WHERE k.digest = p_digest;
    CONTINUE WHEN NOT FOUND;  -- it was deleted meanwhile
    IF p_until IS NULL AND (p_keep IS NULL OR v_key.sent_at > v_now - p_keep)
      OR p_until IS NOT NULL AND horsies_is_unique(v_key.task_id, p_until)
    THEN
      id := v_key.task_id;
      verdict := CASE WHEN v_key.arguments IS NOT DISTINCT FROM p_arguments THEN 'FOUND' ELSE 'CONFLICT' END;
      EXIT;
    END IF;
    UPDATE horsies_send_keys k SET task_id = p_ids[1], arguments = p_arguments, sent_at = v_now
    WHERE k.digest = p_digest AND k.sent_at = v_key.sent_at;
    EXIT WHEN FOUND;
  END LOOP;
  v_set := set_config('lock_timeout', v_patience, true);
  IF verdict IS NULL THEN
    verdict := 'SENT';
    sent_to := horsies_send(p_ids, p_kwargs, p_task_name, p_queue_name, p_lane, p_priority, p_delay, p_due_at, p_good_until, p_max_retries,
                            p_options, p_notified, p_good_for, p_now, p_codec);
  END IF;
END
$$;
