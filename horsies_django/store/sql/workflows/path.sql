-- Checks a JSON path; PostgreSQL raises an error if it is malformed.
-- Locks: none. Index: none.
SELECT %(path)s::jsonpath IS NULL
