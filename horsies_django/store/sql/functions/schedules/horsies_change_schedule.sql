-- Changes a schedule. The same transaction updates since and next_at, writes the audit entry and
-- wakes the schedulers.
--
-- A new pattern or zone, or enabling the schedule, takes effect from now on: earlier fire times are
-- dropped. If the clock was once ahead and last_fire_at is in the future, it is reset to now;
-- otherwise nothing would be sent until then.
--
-- Args: p_declared: replaces the declaration of the code.
--   p_changes: is merged into the changes of users.
--   p_drop: the keys that are removed from these changes. NULL leaves each of these parts alone.
--   p_create: add the schedule if it is missing.
-- Returns: changed: the keys of the definition that changed; NULL if there is no such schedule;
--   lost: as horsies_note returns it.
-- Locks: the schedule's row; waits for a scheduler that holds it.
CREATE OR REPLACE FUNCTION horsies_change_schedule(
  p_name text, p_declared jsonb, p_declared_in text, p_changes jsonb, p_drop text[],
  p_create boolean, p_action text, p_actor text, p_reason text, p_channel text,
  OUT changed text[], OUT lost text
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_old horsies_schedules;
  v_new horsies_schedules;
  v_before jsonb;
  v_after jsonb;
  v_on boolean;
  v_back boolean;
  v_anew boolean;
BEGIN
  IF p_create THEN
    INSERT INTO horsies_schedules (name) VALUES (p_name) ON CONFLICT DO NOTHING;
  END IF;

  SELECT s.* INTO v_old FROM horsies_schedules s WHERE s.name = p_name FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;

  UPDATE horsies_schedules s
  SET
    declared = coalesce(p_declared, s.declared),
    declared_in = coalesce(p_declared_in, s.declared_in),
    declared_at = CASE WHEN p_declared IS NULL THEN s.declared_at ELSE v_now END,
    gone_at = CASE WHEN p_declared IS NULL THEN s.gone_at END,
    changes = (s.changes || coalesce(p_changes, '{}')) - coalesce(p_drop, '{}')
  WHERE s.name = p_name
  RETURNING s.*
  INTO v_new;

  v_before := v_old.declared || v_old.changes;
  v_after := v_new.declared || v_new.changes;
  changed := ARRAY(
    SELECT k.key
    FROM jsonb_object_keys(v_before || v_after) AS k (key)
    WHERE v_before -> k.key IS DISTINCT FROM v_after -> k.key
    ORDER BY k.key
  );
  v_on := v_new.gone_at IS NULL AND coalesce((v_after ->> 'enabled')::boolean, true);
  v_back := v_old.gone_at IS NOT NULL AND v_new.gone_at IS NULL;
  v_anew := changed && '{pattern,zone,enabled}' OR v_back;
  IF changed = '{}' AND NOT v_anew THEN
    RETURN;
  END IF;

  UPDATE horsies_schedules s
  SET
    since = CASE WHEN v_anew THEN v_now ELSE s.since END,
    last_fire_at = CASE
      WHEN v_anew AND s.last_fire_at > v_now THEN v_now
      ELSE s.last_fire_at
    END,
    next_fire_at = CASE WHEN v_on AND NOT v_anew THEN s.next_fire_at END,
    next_at = CASE WHEN v_on THEN v_now END,
    error = NULL,
    error_at = NULL,
    updated_at = v_now
  WHERE s.name = p_name;

  SELECT
    horsies_note(
      p_action, p_actor, p_name, p_reason,
      o.before || CASE WHEN v_back THEN '{"gone": true}' ELSE '{}' END::jsonb,
      o.after || CASE WHEN v_back THEN '{"gone": false}' ELSE '{}' END::jsonb
    )
  INTO lost
  FROM (
    SELECT
      coalesce(jsonb_object_agg(c.key, v_before -> c.key), '{}') AS before,
      coalesce(jsonb_object_agg(c.key, v_after -> c.key), '{}') AS after
    FROM unnest(changed) AS c (key)
  ) o;

  PERFORM pg_notify(p_channel || '_schedules', p_name);
END
$$;
