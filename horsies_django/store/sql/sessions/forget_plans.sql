-- Has the session plan its statements anew. A plan that was made while tables were empty may read whole indexes, and stays until the next
-- ANALYZE; a new one goes by the size of the tables as it is. It cannot be prepared.
DISCARD PLANS
