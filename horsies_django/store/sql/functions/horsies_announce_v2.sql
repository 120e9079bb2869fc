-- Wake the workers of a queue when tasks are sent to it: one NOTIFY per statement and queue, never per row.
-- The payload is the same for all sends of a transaction, so PostgreSQL delivers it once. A "+" behind its time says that more tasks
-- may follow without a word. Only horsies_send_v1 sets horsies.voice: every other INSERT is announced.
-- Locks: none (the commit takes PostgreSQL's own NOTIFY lock). Index: none.
CREATE FUNCTION horsies_announce_v2() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify(
    'horsies_' || left(md5(TG_TABLE_SCHEMA), 8) || '_new',
    extract(epoch FROM now()) || CASE current_setting('horsies.voice', true) WHEN 'more' THEN '+ ' ELSE ' ' END || q.queue_name
  )
  FROM (SELECT DISTINCT added.queue_name FROM added) AS q;
  RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER horsies_tasks_announce AFTER INSERT ON horsies_tasks
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT
  WHEN (current_setting('horsies.voice', true) IS DISTINCT FROM 'quiet') EXECUTE FUNCTION horsies_announce_v2();
