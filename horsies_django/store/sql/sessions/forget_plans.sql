-- Drops the plans of a session, so that it plans its statements anew.
-- A plan that was made while tables were empty may read whole indexes, and stays until the next
-- ANALYZE; a new one goes by the present size of the tables. It cannot be prepared.
DISCARD PLANS
