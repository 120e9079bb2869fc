-- Returns the keep_result of tasks that workers have met, as JSON texts.
-- Workers of release 0.1 add each value as it is, with "own: "; those of this release add the steps
-- to which values are rounded up, with "keep: ".
SELECT DISTINCT substring(p.key FROM ': (.*)')
FROM horsies_prunings p
WHERE p.key ~ '^(own|keep): (false|[0-9]{1,13})$'
