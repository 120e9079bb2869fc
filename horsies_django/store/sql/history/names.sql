-- Returns the names of the tasks in the rows of the history that cover an hour.
SELECT DISTINCT history.task
FROM horsies_history history
WHERE history.width = 3600 AND history.task <> ''
