-- Wakes the workers of a queue when tasks are inserted: one NOTIFY per statement and queue, never
-- per row.
--
-- The payload begins with the time from which workers have to scan: the start of the transaction,
-- or the earliest due time if that is before it. "!" and a lane follow if all tasks are due and in
-- that lane, then the queue. core/notifications.py reads it. All sends of a transaction have the
-- same payload unless a task has a due time, so PostgreSQL delivers it once.
--
-- horsies_send and horsies_settle turn the trigger off for their own INSERTs with the setting
-- horsies.quiet; all other INSERTs are announced.
--
-- Locks: none (the commit takes PostgreSQL's own NOTIFY lock).
CREATE OR REPLACE FUNCTION horsies_announce() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify(
    'horsies_' || left(md5(TG_TABLE_SCHEMA), 8) || '_new',
    extract(epoch FROM least(now(), q.earliest))
      || CASE
           WHEN q.latest <= clock_timestamp() AND q.lane = q.other_lane THEN '!' || q.lane
           ELSE ''
         END
      || ' ' || q.queue_name
  )
  FROM (
    SELECT
      added.queue_name,
      min(added.enqueued_at) AS earliest,
      max(added.enqueued_at) AS latest,
      min(added.lane) AS lane,
      max(added.lane) AS other_lane
    FROM added
    GROUP BY added.queue_name
  ) AS q;

  RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER horsies_tasks_announce
  AFTER INSERT ON horsies_tasks
  REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT
  WHEN (current_setting('horsies.quiet', true) IS DISTINCT FROM 'on')
  EXECUTE FUNCTION horsies_announce();
