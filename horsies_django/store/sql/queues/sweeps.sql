-- Lists the queues that have to be swept.
SELECT queue.name
FROM horsies_queues queue
WHERE queue.sweep IS NOT NULL
