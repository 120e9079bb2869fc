-- Lists the names of the sessions of schedulers, which begin with the prefix.
SELECT DISTINCT application_name
FROM pg_stat_activity
WHERE datname = current_database() AND starts_with(application_name, %(prefix)s::text)
ORDER BY 1
