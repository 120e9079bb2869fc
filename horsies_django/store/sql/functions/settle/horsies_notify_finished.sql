-- Notifies processes that wait for results, if there are any, which tasks have finished.
-- Locks: none (the commit takes PostgreSQL's own NOTIFY lock). Index: horsies_waiters.
CREATE OR REPLACE FUNCTION horsies_notify_finished(p_channel text, p_ids uuid[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF EXISTS (SELECT FROM horsies_waiters w WHERE w.expires_at > clock_timestamp()) THEN
    -- 200 ids of 36 characters fit into the 8,000 bytes of a payload
    PERFORM pg_notify(p_channel || '_done', string_agg(d.id::text, ' '))
    FROM unnest(p_ids) WITH ORDINALITY AS d (id, place) GROUP BY (d.place - 1) / 200;
  END IF;
END
$$;
