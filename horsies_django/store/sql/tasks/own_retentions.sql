-- Returns the keep_result of tasks that workers have met, each once, as JSON texts.
-- Locks: none. Index: none, horsies_prunings is small.
SELECT substr(p.key, 6) FROM horsies_prunings p WHERE p.key ~ '^own: (false|[0-9]{1,13})$' ORDER BY p.key
