-- Adds rows for retentions that tasks brought along, so that every worker deletes these tasks.
-- Locks: none but the new rows; waits for another caller that adds the same.
INSERT INTO horsies_prunings (key)
SELECT unnest(%(keys)s::text[])
ON CONFLICT DO NOTHING
