-- Sends a task unless another one has its digest, in the caller's transaction. No statement gives
-- the digest of a unique task back: the next send takes it over.
--
-- Args: the first ones are those of horsies_take_digest, the others those of horsies_send.
-- Returns: id: the task that has the digest; verdict: 'SENT' (sent_to: the value of horsies_send);
--   'FOUND' (the row of the other task "id" may be gone), or 'CONFLICT' if that was sent with other
--   arguments.
-- Locks: see horsies_take_digest.
CREATE OR REPLACE FUNCTION horsies_send_once(
  p_digest bytea, p_arguments bytea, p_until text, p_keep interval, p_patience text,
  p_ids uuid[], p_kwargs json, p_task_name text, p_queue_name text, p_lane text,
  p_priority smallint, p_delay interval, p_due_at timestamptz, p_good_until timestamptz,
  p_max_retries smallint, p_options jsonb, p_notified oid, p_good_for interval,
  p_now timestamptz, p_codec text, OUT id uuid, OUT verdict text, OUT sent_to oid
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_taken record := horsies_take_digest(
    p_digest, p_ids[1], p_arguments, p_until, p_keep, p_patience, v_now
  );
BEGIN
  id := v_taken.holder;

  IF id = p_ids[1] THEN
    verdict := 'SENT';
    sent_to := horsies_send(
      p_ids, p_kwargs, p_task_name, p_queue_name, p_lane, p_priority, p_delay, p_due_at,
      p_good_until, p_max_retries, p_options, p_notified, p_good_for, p_now, p_codec
    );
  ELSIF v_taken.arguments IS NOT DISTINCT FROM p_arguments THEN
    verdict := 'FOUND';
  ELSE
    verdict := 'CONFLICT';
  END IF;
END
$$;
