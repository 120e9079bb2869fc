-- Lists the queues that have to be swept.
-- Locks: none. Index: none; the table has a row per queue.
SELECT queue.name FROM horsies_queues queue WHERE queue.sweep IS NOT NULL
