-- Wake the workers of a queue when tasks are sent to it: one NOTIFY per statement and queue, never per row.
-- The payload is the same for all sends of a transaction, so PostgreSQL delivers it once.
-- Locks: none (the commit takes PostgreSQL's own NOTIFY lock). Index: none.
CREATE FUNCTION horsies_announce_v1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('horsies_' || left(md5(TG_TABLE_SCHEMA), 8) || '_new', extract(epoch FROM now()) || ' ' || q.queue_name)
  FROM (SELECT DISTINCT added.queue_name FROM added) AS q;
  RETURN NULL;
END
$$;
CREATE TRIGGER horsies_tasks_announce AFTER INSERT ON horsies_tasks
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION horsies_announce_v1();
