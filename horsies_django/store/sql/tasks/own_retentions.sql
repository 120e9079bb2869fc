-- Returns the keep_result of tasks that workers have met, each once, as JSON texts.
SELECT substr(p.key, 6) FROM horsies_prunings p WHERE p.key ~ '^own: (false|[0-9]{1,13})$' ORDER BY p.key
