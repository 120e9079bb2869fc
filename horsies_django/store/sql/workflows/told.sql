-- Notes that the parents of finished runs have been advanced.
-- Locks: the rows of the runs. Index: primary key.
UPDATE horsies_workflows run SET advanced_at = clock_timestamp() WHERE run.id = ANY (%(ids)s::uuid[]) AND run.finished_at IS NOT NULL
