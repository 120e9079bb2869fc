-- Returns the audit entry and the snapshot that were lost last, unless that is longer ago than
-- "recent".
SELECT lost.kind, lost.what, lost.error, extract(epoch FROM clock_timestamp() - lost.at)::float8
FROM horsies_lost_records lost
WHERE lost.at > clock_timestamp() - %(recent)s::interval
ORDER BY lost.kind
