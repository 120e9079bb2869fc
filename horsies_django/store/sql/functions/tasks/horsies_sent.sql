-- Returns when a task was sent and is due that the same statement has just inserted. A function of its own, because a statement does not
-- see rows that it inserts by a function. p_table, the result of horsies_send, only makes it run after that.
-- Locks: none. Index: primary key.
CREATE FUNCTION horsies_sent(p_ids uuid[], p_table oid, OUT sent_at timestamptz, OUT enqueued_at timestamptz)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  SELECT t.sent_at, t.enqueued_at INTO sent_at, enqueued_at FROM horsies_tasks t WHERE t.id = p_ids[1];
END
$$;
