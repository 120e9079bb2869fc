-- Wake the workers of a queue when tasks are sent to it: one NOTIFY per statement and queue, never per row. It tells the moment from
-- which on they have to look: the start of the transaction, or an earlier one since which a task was to be due. Behind it a "!" and
-- a lane say that all of the tasks are due, and in that lane; then a "+" that more of the kind may follow without a word. Only
-- horsies_send sets horsies.voice: every other INSERT is announced.
-- The payload is the same for all sends of a transaction, but for tasks with a moment of their own, so PostgreSQL delivers it once.
-- Locks: none (the commit takes PostgreSQL's own NOTIFY lock). Index: none.
CREATE FUNCTION horsies_announce() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify(
    'horsies_' || left(md5(TG_TABLE_SCHEMA), 8) || '_new',
    extract(epoch FROM least(now(), q.earliest))
      || CASE WHEN q.latest <= now() AND q.lane = q.other_lane THEN '!' || q.lane ELSE '' END
      || CASE current_setting('horsies.voice', true) WHEN 'more' THEN '+ ' ELSE ' ' END || q.queue_name
  )
  FROM (SELECT added.queue_name, min(added.enqueued_at) AS earliest, max(added.enqueued_at) AS latest, min(added.lane) AS lane,
               max(added.lane) AS other_lane
        FROM added GROUP BY added.queue_name) AS q;
  RETURN NULL;
END
$$;
CREATE TRIGGER horsies_tasks_announce AFTER INSERT ON horsies_tasks
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT
  WHEN (current_setting('horsies.voice', true) IS DISTINCT FROM 'quiet') EXECUTE FUNCTION horsies_announce();
