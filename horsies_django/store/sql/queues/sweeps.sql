-- List the queues whose waiting tasks are not in line with their limits yet.
-- Locks: none. Index: none; the table holds a row per queue.
SELECT queue.name FROM horsies_queues queue WHERE queue.sweep IS NOT NULL
