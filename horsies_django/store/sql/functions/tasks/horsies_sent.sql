-- Returns when a task was sent and is due that the same statement has just inserted, and the OID of its table. A function of its own,
-- because a statement does not see rows that a function inserts for it. p_told is the result of horsies_send, which is therefore called
-- first.
-- Locks: none. Index: primary key.
CREATE FUNCTION horsies_sent(p_ids uuid[], p_told oid, OUT told oid, OUT sent_at timestamptz, OUT enqueued_at timestamptz)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  told := p_told;
  SELECT t.sent_at, t.enqueued_at INTO sent_at, enqueued_at FROM horsies_tasks t WHERE t.id = p_ids[1];
END
$$;
