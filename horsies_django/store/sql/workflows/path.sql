-- Checks a JSON path; PostgreSQL raises an error if it is malformed.
SELECT %(path)s::jsonpath IS NULL
